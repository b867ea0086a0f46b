"""The Secret with the certificate of a MacroInstance's components, and a client that trusts it."""

import base64
import binascii
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from macroserve.api.tls import AUTHORITY, TlsPeer, client_context, tls_name
from macroserve.operator.apply.certificates import certificates
from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import Api
from macroserve.operator.k8s.kinds import SECRET, Object, is_owned
from macroserve.operator.render import shared
from macroserve.operator.render.context import RenderContext


@dataclass(frozen=True, slots=True)
class Tls:
    """Data of the Secret, and a peer that trusts only its authority."""

    data: Mapping[str, str] = field(repr=False)
    peer: TlsPeer

    @staticmethod
    def of(name: str, data: Mapping[str, str]) -> "Tls":
        """Build the TLS state.

        Raises ssl.SSLError or ValueError if the data has no certificate of an authority.
        """
        context = client_context()
        context.load_verify_locations(cadata=data.get(AUTHORITY, ""))
        return Tls(data, TlsPeer(name, context))


class CertificateError(Exception):
    """An error whose message is a sentence: a usable certificate is missing."""


async def tls(api: Api, render_context: RenderContext, known: Tls | None, now: datetime) -> Tls:
    """Return the TLS state of the MacroInstance's Secret, after creating or renewing it if needed.

    A lost Secret is restored from ``known``; one of another owner (cert-manager, a person) is used
    unchanged. Raises ApiError and CertificateError.
    """
    secret = names.tls_secret(render_context.name)
    found = await api.get(SECRET, render_context.namespace, secret)
    if not render_context.tls.issued and (found is None or is_owned(found, render_context.uid)):
        data = await _kept(api, render_context, found, known.data if known else {}, now)
    elif found is None:
        raise CertificateError(
            f"cert-manager has not created the Secret {secret} yet: see the Certificate {secret}."
        )
    else:
        data = _text(found)
    if known and known.data == data:
        return known
    try:
        return Tls.of(tls_name(render_context.namespace, render_context.name), data)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"The Secret {secret} must have under the key {AUTHORITY} the certificate of who "
            "signed the one under tls.crt, in PEM."
        ) from error


async def _kept(
    api: Api,
    render_context: RenderContext,
    found: Object | None,
    former: Mapping[str, str],
    now: datetime,
) -> Mapping[str, str]:
    """Return the data of the operator's own Secret after bringing it up to date."""
    name = tls_name(render_context.namespace, render_context.name)
    if found is None:
        data = certificates(former, name, now)
        await api.create(SECRET, shared.certificates(render_context, data))
        return data
    held = _text(found)
    data = certificates(held, name, now)
    if data is not held:
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "stringData": dict(data)}
        await api.merge(
            SECRET, render_context.namespace, names.tls_secret(render_context.name), patch
        )
    return data


def _text(secret: Object) -> dict[str, str]:
    """Return the data of a Secret, without items that are not text."""
    texts = {}
    for key, encoded in (secret.get("data") or {}).items():
        try:
            texts[key] = base64.b64decode(encoded).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return texts
