"""Renewal of the certificate of a MacroInstance's components and of its signing authority.

Pods reload the authority's certificate within minutes of a change, at different times. A new
authority is therefore first trusted in addition to the former one, and signs only when the next
certificate is due.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from macroserve.api.tls import AUTHORITY, CERTIFICATE, KEY

AUTHORITY_KEY = "ca.key"
"""This key is only in the Secret; pods do not mount it."""
LIFETIME, RENEW_BEFORE = timedelta(days=90), timedelta(days=30)
AUTHORITY_LIFETIME, AUTHORITY_RENEW_BEFORE = timedelta(days=3650), timedelta(days=365)
TRUSTED_BEFORE_USE = timedelta(days=1)
"""Minimum time for which pods have an authority's certificate before it signs others."""
BACKDATED = timedelta(hours=1)
"""Margin for differences between the nodes' clocks."""


@dataclass(frozen=True)
class _SecretContent:
    authorities: Sequence[x509.Certificate]
    """Trusted authorities; the first one signs with ``authority_key``."""
    authority_key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificates(data: Mapping[str, str], name: str, now: datetime) -> Mapping[str, str]:
    """Return the content that a Secret with this data should have; ``data`` itself if nothing is
    due.

    Parts that are missing, unreadable or inconsistent are created again.

    name: server name of the certificate.
    now: wall clock, with a time zone.
    """
    held = _held(data)
    if held is None or not _lasts(held.authorities[0], now, timedelta()):
        return _text(_new(name, now))
    if not (_fits(held, name) and _lasts(held.certificate, now, RENEW_BEFORE)):
        return _text(_with_certificate(held.authorities, held.authority_key, name, now))
    is_quiet = _lasts(held.certificate, now, RENEW_BEFORE + TRUSTED_BEFORE_USE)
    if is_quiet and not _lasts(held.authorities[0], now, AUTHORITY_RENEW_BEFORE):
        authority, key = _new_authority(now)
        kept = [each for each in held.authorities if _lasts(each, now, timedelta())]
        return _text(_SecretContent([authority, *kept], key, held.certificate, held.key))
    return data


def _held(data: Mapping[str, str]) -> _SecretContent | None:
    """Return the parsed data, or None if it is incomplete or a key does not match."""
    try:
        held = _SecretContent(
            x509.load_pem_x509_certificates(data[AUTHORITY].encode()),
            _private(data[AUTHORITY_KEY]),
            x509.load_pem_x509_certificate(data[CERTIFICATE].encode()),
            _private(data[KEY]),
        )
    except (KeyError, ValueError, TypeError):
        return None
    pairs = ((held.authorities[0], held.authority_key), (held.certificate, held.key))
    return held if all(cert.public_key() == key.public_key() for cert, key in pairs) else None


def _private(text: str) -> ec.EllipticCurvePrivateKey:
    """Parse a private key. Raise ValueError or TypeError."""
    key = serialization.load_pem_private_key(text.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("it is no key of an elliptic curve")
    return key


def _fits(held: _SecretContent, name: str) -> bool:
    """Return whether a trusted authority signed the certificate, for this name."""
    try:
        names = held.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        is_named = names.value.get_values_for_type(x509.DNSName) == [name]
    except (x509.ExtensionNotFound, ValueError):
        return False
    return is_named and any(_signed(held.certificate, each) for each in held.authorities)


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _lasts(certificate: x509.Certificate, now: datetime, time: timedelta) -> bool:
    return certificate.not_valid_after_utc - now > time


def _new(name: str, now: datetime) -> _SecretContent:
    authority, key = _new_authority(now)
    return _with_certificate([authority], key, name, now)


def _with_certificate(
    authorities: Sequence[x509.Certificate],
    authority_key: ec.EllipticCurvePrivateKey,
    name: str,
    now: datetime,
) -> _SecretContent:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authorities[0]
    certificate = (
        _builder(_subject("macroserve"), signer.subject, key, now, LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    return _SecretContent(authorities, authority_key, certificate, key)


def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # With equal names, a verifier could try the wrong authority's key.
    subject = _subject(f"macroserve {x509.random_serial_number():x}"[:64])
    certificate = (
        _builder(subject, subject, key, now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _text(held: _SecretContent) -> dict[str, str]:
    return {
        CERTIFICATE: _pem(held.certificate),
        KEY: _key_pem(held.key),
        AUTHORITY: "".join(map(_pem, held.authorities)),
        AUTHORITY_KEY: _key_pem(held.authority_key),
    }


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
