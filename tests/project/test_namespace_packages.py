"""``macroserve`` is one namespace over three folders, one of them called like a stdlib module."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("operator", "serving", "kernels")


def test_package_root_does_not_shadow_the_standard_operator() -> None:
    # -S: without site-packages nothing has imported the standard module before.
    code = "import operator; operator.itemgetter"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)


def test_namespace_folders_have_no_init() -> None:
    folders = [ROOT / folder for folder in FOLDERS]
    folders += [folder / "macroserve" for folder in folders]
    assert [f for f in folders if not f.is_dir()] == []
    assert [f for f in folders if (f / "__init__.py").exists()] == []


def test_packages_below_the_root_are_typed_and_regular() -> None:
    packages = [p for f in FOLDERS for p in (ROOT / f / "macroserve").iterdir() if p.is_dir()]
    packages = [p for p in packages if any(p.glob("*.py"))]
    assert packages
    for package in packages:
        assert (package / "__init__.py").exists(), package
        assert (package / "py.typed").exists(), package
