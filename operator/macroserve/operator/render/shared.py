"""Objects that a MacroInstance's pods read: its manifest, keys, tokens and certificate."""

import json
import secrets
from collections.abc import Iterable, Mapping

from macroserve.api.keys import SHARED, KeyRing, Purpose
from macroserve.api.tls import tls_name
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.render.context import RenderContext
from macroserve.operator.render.pods import ADMIN_TOKEN, MANIFEST_FILE, key_name

SECRET = "secret"
TOKEN_KEYS = (SECRET, ADMIN_TOKEN)
"""Keys that users may change; all keys between pods are derived from the first."""


def config_map(context: RenderContext) -> Object:
    document = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": context.name, "namespace": context.namespace},
        "spec": context.document["spec"],
    }
    return {
        "metadata": context.metadata(names.config_map(context.name)),
        "data": {MANIFEST_FILE: json.dumps(document, indent=2, sort_keys=True)},
    }


def key_data(keys: Mapping[Purpose, Iterable[str]]) -> dict[str, str]:
    """Return keys as pods read them: one per line, the newest first."""
    return {key_name(purpose): "".join(f"{k}\n" for k in held) for purpose, held in keys.items()}


def tokens(context: RenderContext, data: Mapping[str, str] | None = None) -> Object:
    """Return a Secret with this content, or with new random tokens and their keys."""
    if data is None:
        data = {key: secrets.token_urlsafe(32) for key in TOKEN_KEYS}
        data |= key_data(KeyRing.derived([data[SECRET]], SHARED).keys)
    return {
        "metadata": context.metadata(names.secret(context.name)),
        "type": "Opaque",
        "stringData": dict(data),
    }


def certificates(context: RenderContext, data: Mapping[str, str]) -> Object:
    """Return a Secret with the certificate that the operator issues (``apply.certificates``)."""
    return {
        "metadata": context.metadata(names.tls_secret(context.name)),
        "type": "kubernetes.io/tls",
        "stringData": dict(data),
    }


def certificate(context: RenderContext) -> Object:
    """Return the Certificate from which cert-manager creates that Secret."""
    name = names.tls_secret(context.name)
    return {
        "metadata": context.metadata(name),
        "spec": {
            "secretName": name,
            "dnsNames": [tls_name(context.namespace, context.name)],
            "issuerRef": context.tls.issuer_ref,
            "usages": ["server auth"],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        },
    }
