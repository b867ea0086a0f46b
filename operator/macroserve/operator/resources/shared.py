"""What all pods of a MacroInstance read: its manifest and its tokens."""

import json
import secrets
from collections.abc import Iterable

from macroserve.operator import names
from macroserve.operator.resources.blueprint import Blueprint, Object
from macroserve.operator.resources.pods import MANIFEST_FILE

TOKEN_KEYS = ("secret", "admin-token")
"""What signs handles and lets processes into each other, and what lets the operator into the
head."""


def config_map(blueprint: Blueprint) -> Object:
    document = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": blueprint.name, "namespace": blueprint.namespace},
        "spec": blueprint.document["spec"],
    }
    return {
        "metadata": blueprint.metadata(names.config_map(blueprint.name)),
        "data": {MANIFEST_FILE: json.dumps(document, indent=2, sort_keys=True)},
    }


def tokens(blueprint: Blueprint, values: Iterable[str] | None = None) -> Object:
    """A Secret of these tokens, in the order of their keys, or of new random ones."""
    given = values or (secrets.token_urlsafe(32) for _ in TOKEN_KEYS)
    return {
        "metadata": blueprint.metadata(names.secret(blueprint.name)),
        "type": "Opaque",
        "stringData": dict(zip(TOKEN_KEYS, given, strict=True)),
    }
