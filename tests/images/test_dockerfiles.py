"""The Dockerfiles lint clean, and images built without Docker have the same configuration."""

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from images.dockerfile import read_dockerfile

ROOT = Path(__file__).parents[2]
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"
COMPONENTS = ("engine", "operator")

TWO_STAGES = """
ARG BASE=python
FROM ${BASE} AS build
ARG REQUIREMENTS=some.lock
ENV PATH=/build:$PATH LEFT=behind
USER 0
ENTRYPOINT ["gcc"]

FROM ${BASE}
ARG PACKAGES="libone libtwo"
ARG VERSION=unknown
ENV PATH=/opt/bin:$PATH \\
    HOME=/home
LABEL title="An app" \\
      version="${VERSION}"
USER 65532:65532
WORKDIR /srv
ENTRYPOINT ["app", "--fast"]
"""


@pytest.fixture
def two_stages(tmp_path: Path) -> Path:
    path = tmp_path / "Dockerfile"
    path.write_text(TWO_STAGES)
    return path


def test_image_config_is_that_of_the_last_stage(two_stages: Path) -> None:
    config = read_dockerfile(two_stages, {}).config
    assert config.entrypoint == ["app", "--fast"]
    assert config.user == "65532:65532"
    assert config.working_dir == "/srv"
    assert config.environment["PATH"].startswith("/opt/bin:/usr/local/bin:")
    assert config.environment["HOME"] == "/home"
    assert "LEFT" not in config.environment
    assert config.labels == {"title": "An app", "version": "unknown"}


def test_arguments_of_every_stage_have_their_defaults(two_stages: Path) -> None:
    dockerfile = read_dockerfile(two_stages, {"VERSION": "1.2.3"})
    assert dockerfile.arguments == {
        "BASE": "python",
        "REQUIREMENTS": "some.lock",
        "PACKAGES": "libone libtwo",
        "VERSION": "1.2.3",
    }
    assert dockerfile.config.labels["version"] == "1.2.3"


def test_dockerfile_without_an_entrypoint_in_its_last_stage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text('FROM one\nUSER 1\nWORKDIR /\nENTRYPOINT ["app"]\nFROM two\nUSER 1\n')
    with pytest.raises(KeyError, match="ENTRYPOINT"):
        read_dockerfile(path, {})


@pytest.mark.parametrize("component", COMPONENTS)
def test_dockerfiles_lint_clean(component: str) -> None:
    dockerfile = ROOT / "images" / component / "Dockerfile"
    linted = subprocess.run([HADOLINT, dockerfile], capture_output=True, text=True)
    assert linted.stdout == ""
    assert linted.returncode == 0


@pytest.mark.parametrize("component", COMPONENTS)
def test_images_run_as_pods_must(component: str) -> None:
    dockerfile = read_dockerfile(ROOT / "images" / component / "Dockerfile", {})
    environment = dockerfile.config.environment
    assert dockerfile.config.user == "65532:65532"
    assert environment["PATH"].startswith("/opt/macroserve/bin:")
    assert environment["HOME"] == dockerfile.config.working_dir == "/var/cache/macroserve"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert dockerfile.arguments["PYTHON_IMAGE"].startswith("python:3.11.")
    assert (ROOT / "requirements" / dockerfile.arguments["REQUIREMENTS"]).exists()


def test_images_have_one_base_by_its_digest() -> None:
    files = [ROOT / "images" / component / "Dockerfile" for component in COMPONENTS]
    bases = {read_dockerfile(file, {}).arguments["PYTHON_IMAGE"] for file in files}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.11\.[0-9]+-slim-bookworm@sha256:[0-9a-f]{64}", bases.pop())


def test_engine_writes_only_where_pods_have_a_volume() -> None:
    config = read_dockerfile(ROOT / "images" / "engine" / "Dockerfile", {}).config
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        assert Path(config.environment[name]).is_relative_to("/var/cache/macroserve"), name


def test_build_context_has_what_the_dockerfiles_copy() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert allowed >= {"images/finish.py", "requirements"}
    # What the wheel is made of.
    assert allowed >= {"kernels", "operator", "serving", "pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / path).exists() for path in allowed)
