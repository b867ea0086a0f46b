"""The configuration of an image from its Dockerfile, for images built without Docker."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.image_archive import ImageConfig
from dockerfile_parse import DockerfileParser

# Environment of the python images on Docker Hub, on which the Dockerfiles are based.
_BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True)
class Dockerfile:
    arguments: Mapping[str, str]
    """Build arguments of all stages with defaults."""
    config: ImageConfig
    """Configuration of the last stage."""


def read_dockerfile(path: Path, arguments: Mapping[str, str]) -> Dockerfile:
    """Read a Dockerfile with the build `arguments`. Raises KeyError if its last stage has no
    ENTRYPOINT, USER or WORKDIR."""
    parser = DockerfileParser(
        str(path), parent_env=dict(_BASE_ENVIRONMENT), build_args=dict(arguments)
    )
    defaults: dict[str, str] = {}
    last_stage: dict[str, str] = {}
    for step in parser.structure:
        if step["instruction"] == "FROM":
            last_stage = {}
        elif step["instruction"] == "ARG":
            (argument,) = shlex.split(step["value"])
            name, has_default, default = argument.partition("=")
            if has_default:
                defaults[name] = default
        last_stage[step["instruction"]] = step["value"]
    config = ImageConfig(
        entrypoint=json.loads(last_stage["ENTRYPOINT"]),
        environment={**_BASE_ENVIRONMENT, **parser.envs},
        user=last_stage["USER"],
        working_dir=last_stage["WORKDIR"],
        labels=dict(parser.labels),
    )
    return Dockerfile(defaults | dict(arguments), config)
