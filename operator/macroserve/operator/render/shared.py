"""What pods of a MacroInstance read: its manifest, its keys, its tokens and its certificate."""

import json
import secrets
from collections.abc import Iterable, Mapping

from macroserve.api.keys import SHARED, KeyRing, Purpose
from macroserve.api.tls import tls_name
from macroserve.operator.k8s import names
from macroserve.operator.render.blueprint import Blueprint, Object
from macroserve.operator.render.pods import ADMIN_TOKEN, MANIFEST_FILE, key_name

SECRET = "secret"
TOKEN_KEYS = (SECRET, ADMIN_TOKEN)
"""What a person may change. All keys between the pods follow from the first."""


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


def key_data(keys: Mapping[Purpose, Iterable[str]]) -> dict[str, str]:
    """Return keys as pods read them: a key a line, the newest first."""
    return {key_name(purpose): "".join(f"{k}\n" for k in held) for purpose, held in keys.items()}


def tokens(blueprint: Blueprint, data: Mapping[str, str] | None = None) -> Object:
    """A Secret with this content, or with new random tokens and the keys that follow from them."""
    if data is None:
        data = {key: secrets.token_urlsafe(32) for key in TOKEN_KEYS}
        data |= key_data(KeyRing.derived([data[SECRET]], SHARED).keys)
    return {
        "metadata": blueprint.metadata(names.secret(blueprint.name)),
        "type": "Opaque",
        "stringData": dict(data),
    }


def certificates(blueprint: Blueprint, data: Mapping[str, str]) -> Object:
    """A Secret with the certificate of ``operator.certificates``."""
    return {
        "metadata": blueprint.metadata(names.tls_secret(blueprint.name)),
        "type": "kubernetes.io/tls",
        "stringData": dict(data),
    }


def certificate(blueprint: Blueprint) -> Object:
    """cert-manager's, which makes that Secret."""
    name = names.tls_secret(blueprint.name)
    return {
        "metadata": blueprint.metadata(name),
        "spec": {
            "secretName": name,
            "dnsNames": [tls_name(blueprint.namespace, blueprint.name)],
            "issuerRef": blueprint.tls.issuer_ref,
            "usages": ["server auth"],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        },
    }
