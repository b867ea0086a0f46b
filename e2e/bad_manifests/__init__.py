"""Manifests that cannot work, and who must say so in which words: see ``cases.yaml``."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent
GOOD: dict[str, Any] = yaml.safe_load((_FOLDER / "good.yaml").read_text())


@dataclass(frozen=True)
class Case:
    """A bad manifest and the part that refuses it: `refused` is ``Degraded/REASON`` if the cluster
    accepts the manifest and the condition names the cause."""

    name: str
    refused: str
    words: list[str]
    first: Mapping[str, Any] | None = None
    create: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    scale: int | None = None

    @property
    def before(self) -> dict[str, Any] | None:
        """Return the valid object that must exist in the cluster first, if the case needs one."""
        return None if self.create else merged(GOOD, self.first or {})

    @property
    def document(self) -> dict[str, Any]:
        """The manifest to apply; of a case that scales, the one that is there."""
        before = self.before or merged(GOOD, self.first or {})
        return merged(before, self.create or self.update or {})

    def missing_in(self, message: str) -> list[str]:
        """Words that are wanted and not there."""
        return [word for word in self.words if word not in message]

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document after a JSON merge patch (RFC 7386)."""
    result = copy.deepcopy(dict(document))
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            there = result.get(name)
            result[name] = merged(there if isinstance(there, dict) else {}, value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def create(kubectl: Callable[..., str], namespace: str, document: Mapping[str, Any]) -> None:
    """Strictly, as kubectl asks since Kubernetes 1.27; the one at hand may be older."""
    url = f"/apis/macroserve.io/v1alpha1/namespaces/{namespace}/macroinstances"
    url += "?fieldValidation=Strict"
    kubectl("create", "--raw", url, "-f", "-", input=json.dumps(document))


def attempt(kubectl: Callable[..., str], namespace: str, case: Case) -> None:
    """Make the bad write. Raises what kubectl raises when it is refused."""
    name = case.document["metadata"]["name"]
    if case.scale is not None:
        kubectl("-n", namespace, "scale", "macroinstance", name, f"--replicas={case.scale}")
    elif case.update:
        patch = ("--type=merge", "-p", json.dumps(case.update))
        kubectl("-n", namespace, "patch", "macroinstance", name, *patch)
    else:
        create(kubectl, namespace, case.document)


CASES = [Case(**entry) for entry in yaml.safe_load((_FOLDER / "cases.yaml").read_text())]


def refused_by(*who: str) -> list[Case]:
    """Cases by their ``refused``; ``Degraded`` for all that are taken."""
    return [case for case in CASES if case.refused.partition("/")[0] in who]
