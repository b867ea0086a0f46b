"""`images/finish.py` removes files that no pod reads and compiles modules for their place in the
image."""

import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

import pytest

FINISH = Path(__file__).parents[2] / "images" / "finish.py"
PACKAGES = Path("opt/macroserve/lib/python3.11/site-packages")
PYC_HEADER_BYTES = 16

KEPT = (
    "app/main.py",
    "app/tests.py",
    "app/data.json",
    "torch/bin/torch_shm_manager",
    "torch/include/torch.h",
    "torch/testing/__init__.py",
)
DROPPED = (
    "app/main.pyi",
    "app/tests/test_main.py",
    "app/sub/tests/tests/test_sub.py",
    "app/tests/typed.pyi",
    "app/lib.a",
    "app/script.js.map",
    "app/w64.exe",
    "ray/jars/ray.jar",
    "torch/bin/FileStoreTest",
    "torch/bin/protoc-3.13.0.0",
    "torch/bin/test_jit",
    "torch/test/test_torch.py",
)


def finish(root: Path) -> None:
    subprocess.run([sys.executable, FINISH, root], check=True)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    packages = tmp_path / PACKAGES
    for name in (*KEPT, *DROPPED):
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("VALUE = 1\n")
    return packages


def test_files_that_no_pod_reads_are_removed(tmp_path: Path, packages: Path) -> None:
    finish(tmp_path)
    left = {
        str(path.relative_to(packages))
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert left == set(KEPT)


def test_modules_are_compiled_for_their_place_in_the_image(tmp_path: Path, packages: Path) -> None:
    finish(tmp_path)
    source = packages / "app/main.py"
    compiled = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    code = marshal.loads(compiled[PYC_HEADER_BYTES:])
    assert code.co_filename == "/opt/macroserve/lib/python3.11/site-packages/app/main.py"


def test_bytecode_is_unchecked_and_has_no_timestamp(tmp_path: Path, packages: Path) -> None:
    finish(tmp_path)
    source = packages / "app/main.py"
    compiled = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    flags = int.from_bytes(compiled[4:8], "little")
    assert flags == 0b01  # PEP 552: a hash, and nobody checks it
    assert compiled[8:16] == importlib.util.source_hash(source.read_bytes())


def test_files_that_are_not_python_stay_uncompiled(tmp_path: Path, packages: Path) -> None:
    (packages / "app/template.py").write_text("{{ name }} = not python")
    finish(tmp_path)
    assert (packages / "app/template.py").exists()
    assert Path(importlib.util.cache_from_source(str(packages / "app/main.py"))).exists()


def test_links_out_of_the_tree_are_not_followed_when_removed(
    tmp_path: Path, packages: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("")
    (packages / "app/sub/linked").mkdir()
    (packages / "app/sub/linked/tests").symlink_to(outside)
    finish(tmp_path)
    assert (outside / "precious").exists()
    assert not (packages / "app/sub/linked/tests").exists()
