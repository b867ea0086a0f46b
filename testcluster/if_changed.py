"""Runs the tests of this folder unless they have passed on this machine as it is now.

    python testcluster/if_changed.py COMMAND...

They count as passed for 30 days, by the same command alone, and only for the same content of all
files here and of the locked packages. A machine without a record runs them.
"""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

from cluster import places

_FOLDER = Path(__file__).parent
_LOCKS = _FOLDER.parent / "requirements"
_COUNTS_FOR_S = 30 * 24 * 3600.0


def content_of(folder: Path, *others: Path) -> str:
    """Return a digest of all files of a folder that git does not ignore, and of some others."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=folder, check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256()
    for file in (*(folder / name for name in sorted(names.split("\0")) if name), *others):
        if file.is_file():
            text = file.read_bytes()
            digest.update(f"{file.name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def reason_to_skip(record: Path, tested: str, now_s: float) -> str:
    """Return why the tests need not run; empty if they have to."""
    if not record.exists():
        return ""
    passed = json.loads(record.read_text())
    if passed["tested"] != tested or now_s - passed["at_s"] > _COUNTS_FOR_S:
        return ""
    day = time.strftime("%Y-%m-%d", time.localtime(passed["at_s"]))
    return f"they passed on {day} on this machine, and nothing has changed since"


def main(command: list[str], record: Path, content: str) -> int:
    tested = f"{' '.join(command)} of {content}"
    if reason := reason_to_skip(record, tested, time.time()):
        print(f"The test clusters' own tests are skipped: {reason} (see {record}).")
        return 0
    ended = subprocess.run(command)
    if ended.returncode == 0:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"tested": tested, "at_s": time.time()}))
    return ended.returncode


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1:],
            places.tests_passed(),
            content_of(_FOLDER, *sorted(_LOCKS.glob("*.lock"))),
        )
    )
