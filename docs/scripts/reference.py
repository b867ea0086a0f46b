"""Write the pages of the reference from the sources that they describe.

Usage: ``python docs/scripts/reference.py FOLDER``, in Macroserve's own environment. ``hooks.py``
adds what is in build/reference to the site.
"""

import sys
from pathlib import Path

import cli
import macroinstance
import metrics
import values

PAGES = {
    "macroinstance.md": macroinstance.page,
    "values.md": values.page,
    "cli.md": cli.page,
    "metrics.md": metrics.page,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
