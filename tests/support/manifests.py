"""Manifests for tests, derived from a valid one."""

import copy
from typing import Any

GOOD: dict[str, Any] = {
    "apiVersion": "macroserve.io/v1alpha1",
    "kind": "MacroInstance",
    "metadata": {"name": "llama"},
    "spec": {
        "model": {"source": "tiny", "maxModelLen": 2048},
        "engine": {"type": "vLLM"},
        "slo": {"ttft": "2s", "tpot": "100ms"},
        "instances": 3,
        "mitosis": {"lowerBound": 2, "upperBound": 4},
    },
}
ABSENT = object()
AUTOSCALING = {"minInstances": 2, "maxInstances": 8}


def edited(*edits: tuple[str, object]) -> dict[str, Any]:
    """Return ``GOOD`` with values set, or removed if ABSENT, at dotted paths."""
    document = copy.deepcopy(GOOD)
    for path, value in edits:
        *parents, last = path.split(".")
        place = document
        for key in parents:
            place = place.setdefault(key, {})
        if value is ABSENT:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return document


def emulated(**spec: Any) -> dict[str, Any]:
    """Return a manifest of emulated engines, with parts of its spec replaced."""
    document = edited(("spec.engine.type", "Emulated"))
    document["spec"] |= spec
    return document
