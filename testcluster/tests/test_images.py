"""Images are built by Docker if it is available, else without it."""

import json
import os
import sys
from pathlib import Path

import pytest
from cluster import places
from images import (
    build_engine_image,
    build_later_engine_image,
    build_operator_image,
    docker,
    without_docker,
)

DOCKER = """#!{python}
import json, pathlib, sys

folder = pathlib.Path("{folder}")
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
match sys.argv[1:]:
    case ["info"]:
        sys.exit(int((folder / "status").read_text()))
    case ["image", "inspect", _, name]:
        print("sha256:" + name)
    case ["save", "-o", target, name]:
        pathlib.Path(target).write_text(name)
    case ["build", "-t", name, context]:
        for file in pathlib.Path(context).iterdir():
            (folder / file.name).write_text(file.read_text())
"""


class Docker:
    """A fake docker command that records its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = folder / "docker"
        command.write_text(DOCKER.format(python=sys.executable, folder=folder))
        command.chmod(0o755)
        self.daemon(answers=True)

    def daemon(self, *, answers: bool) -> None:
        (self.folder / "status").write_text("0" if answers else "1")

    def calls(self, verb: str) -> list[list[str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call[0] == verb]


@pytest.fixture(autouse=True)
def built_without_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Record the images to build without Docker instead of building them for minutes."""
    components: list[str] = []

    def build(component: str, version: str, later: bool = False) -> Path:
        components.append(component)
        return tmp_path / f"{component}.tar"

    monkeypatch.setattr(without_docker, "build", build)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return components


@pytest.fixture
def with_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Docker:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Docker(tmp_path)


def test_images_with_docker_are_built_by_it(
    with_docker: Docker, built_without_docker: list[str]
) -> None:
    archive = build_operator_image()
    name = "registry.local/macroserve/operator:e2e"
    assert archive.read_text() == name
    assert archive.is_relative_to(places.images())
    ((*_, dockerfile, _, tag, _, version, context),) = with_docker.calls("build")
    assert Path(dockerfile) == Path(context) / "images" / "operator" / "Dockerfile"
    assert tag == name
    assert version.startswith("VERSION=0.")
    assert built_without_docker == []


def test_unchanged_image_of_docker_is_saved_once(with_docker: Docker) -> None:
    assert build_engine_image() == build_engine_image()
    assert len(with_docker.calls("build")) == 2
    assert len(with_docker.calls("save")) == 1


def test_later_image_of_docker_adds_the_later_messages(with_docker: Docker) -> None:
    assert build_later_engine_image().read_text() == "registry.local/macroserve/engine:later"
    text = (with_docker.folder / "Dockerfile").read_text()
    assert text.startswith("FROM registry.local/macroserve/engine:e2e\n")
    assert (with_docker.folder / "later_wire.pth").read_text() == "import later_wire\n"
    assert (with_docker.folder / "later_wire.py").exists()


def test_images_without_an_answering_daemon_are_built_without_docker(
    with_docker: Docker, built_without_docker: list[str]
) -> None:
    with_docker.daemon(answers=False)
    build_engine_image()
    assert built_without_docker == ["engine"]
    assert with_docker.calls("build") == []


def test_images_without_docker_are_built_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built_without_docker: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not docker.answers()
    build_operator_image()
    assert built_without_docker == ["operator"]
