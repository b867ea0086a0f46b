"""The wheel contains the typed packages of all three folders, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_wheel_has_every_package_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("macroserve-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name for name in names if ".dist-info/" not in name}
    expected = {
        str(path.relative_to(ROOT / folder))
        for folder in ("operator", "serving", "kernels")
        for path in (ROOT / folder / "macroserve").rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert packaged == expected
    for package in ("core", "operator", "kernels"):
        assert f"macroserve/{package}/py.typed" in packaged
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
