"""Manifests that cannot work, with the expected errors (``cases.yaml``)."""

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
    """A bad manifest. `refused` is the component that refuses it, or ``Degraded/REASON`` if the
    cluster accepts it and the condition has the cause."""

    name: str
    refused: str
    words: list[str]
    first: Mapping[str, Any] | None = None
    create: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None
    scale: int | None = None

    @property
    def before(self) -> dict[str, Any] | None:
        """Return the valid object that must exist first, if the case needs one."""
        return None if self.create else merged(GOOD, self.first or {})

    @property
    def document(self) -> dict[str, Any]:
        """Return the manifest to apply, or the existing one for a case that scales."""
        before = self.before or merged(GOOD, self.first or {})
        return merged(before, self.create or self.update or {})

    def missing_in(self, message: str) -> list[str]:
        """Return the expected words that are missing in the message."""
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
    """Create an object with strict validation, kubectl's default since Kubernetes 1.27."""
    url = f"/apis/macroserve.io/v1alpha1/namespaces/{namespace}/macroinstances"
    url += "?fieldValidation=Strict"
    kubectl("create", "--raw", url, "-f", "-", input=json.dumps(document))


def attempt(kubectl: Callable[..., str], namespace: str, case: Case) -> None:
    """Make the bad write. Raises kubectl's error if it is refused."""
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
    """Return the cases by ``refused``; ``Degraded`` means all that the cluster accepts."""
    return [case for case in CASES if case.refused.partition("/")[0] in who]
