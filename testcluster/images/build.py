"""The images of the end-to-end tests, built by Docker if it is available, else without it."""

import tomllib
from pathlib import Path

from images import docker, without_docker
from images.packages import ROOT


def build_operator_image() -> Path:
    """Return an archive of ``registry.local/macroserve/operator:e2e``."""
    return _build("operator")


def build_engine_image() -> Path:
    """Return an archive of ``registry.local/macroserve/engine:e2e``."""
    return _build("engine")


def build_later_engine_image() -> Path:
    """Return an archive of ``registry.local/macroserve/engine:later``.

    Its messages are those of a future version (``later_wire``).
    """
    return _build("engine", later=True)


def _build(component: str, later: bool = False) -> Path:
    builder = docker if docker.answers() else without_docker
    return builder.build(component, _version(), later)


def _version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["version"]
