"""Strict decoding of objects by the Go types of the newest Kubernetes."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster import binaries
from cluster.errors import ClusterError


@dataclass(frozen=True)
class Verdict:
    """The result for an object.

    Attributes:
        error: why it is refused, such as an unknown field; empty if it is accepted.
        deprecated: version that deprecated its API, such as ``1.33``; empty if none has.
        removed: version that removed its API; empty if none has.
    """

    error: str
    deprecated: str
    removed: str


def decode_strictly(objects: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Return a verdict for each object. Raise ClusterError if the types are not built."""
    program = binaries.find() / "decode-strictly"
    if not program.exists():
        raise ClusterError(f"{program.parent} has no Go types of the newest Kubernetes")
    newest = _numbers(binaries.versions()["newest types"].removeprefix("v"))
    ended = subprocess.run(
        [program], input=json.dumps(objects), capture_output=True, text=True, check=True
    )

    def until_now(version: str) -> str:
        """Return a released version, else nothing: beta APIs name a future removal."""
        return version if version and _numbers(version) <= newest else ""

    return [
        Verdict(each["error"], until_now(each["deprecated"]), until_now(each["removed"]))
        for each in json.loads(ended.stdout)
    ]


def _numbers(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
