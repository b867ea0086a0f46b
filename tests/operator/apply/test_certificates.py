"""The certificates of a MacroInstance are created, and renewed when they are due."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from macroserve.operator.apply.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    AUTHORITY_LIFETIME,
    AUTHORITY_RENEW_BEFORE,
    CERTIFICATE,
    KEY,
    LIFETIME,
    RENEW_BEFORE,
    TRUSTED_BEFORE_USE,
    certificates,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NAME = "chat.team.macroserve.internal"
SECOND = timedelta(seconds=1)
DUE = NOW + LIFETIME - RENEW_BEFORE
AUTHORITY_DUE = NOW + AUTHORITY_LIFETIME - AUTHORITY_RENEW_BEFORE


def authorities(data) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(data[AUTHORITY].encode())


def is_taken(data, trusted) -> bool:
    """Return whether a peer with the authorities of ``trusted`` accepts the certificate of
    ``data``.
    """
    certificate = x509.load_pem_x509_certificate(data[CERTIFICATE].encode())
    for authority in authorities(trusted):
        if authority.subject == certificate.issuer:
            certificate.verify_directly_issued_by(authority)
            return True
    return False


def test_new_certificate_is_for_the_name_and_fits_its_key(tmp_path) -> None:
    data = certificates({}, NAME, NOW)
    certificate = x509.load_pem_x509_certificate(data[CERTIFICATE].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert certificate.not_valid_before_utc < NOW
    assert certificate.not_valid_after_utc == NOW + LIFETIME
    assert is_taken(data, data) and len(authorities(data)) == 1
    for key in (CERTIFICATE, KEY, AUTHORITY):
        (tmp_path / key).write_text(data[key])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
    context.load_verify_locations(tmp_path / AUTHORITY)


def test_certificate_before_it_is_due_is_unchanged() -> None:
    data = certificates({}, NAME, NOW)
    for now in (NOW, NOW + SECOND, DUE - SECOND):
        assert certificates(data, NAME, now) is data


def test_certificate_is_renewed_by_the_same_authority_before_it_expires() -> None:
    data = certificates({}, NAME, NOW)
    renewed = certificates(data, NAME, DUE)
    assert renewed[CERTIFICATE] != data[CERTIFICATE] and renewed[KEY] != data[KEY]
    assert renewed[AUTHORITY] == data[AUTHORITY]
    assert renewed[AUTHORITY_KEY] == data[AUTHORITY_KEY]
    assert certificates(renewed, NAME, DUE) is renewed


def test_certificates_over_25_years_are_trusted_with_files_of_the_day_before() -> None:
    """An operator that looks once a day, and pods whose files are one look behind."""
    data, changes = certificates({}, NAME, NOW), 0
    expiry, signers = NOW + LIFETIME, set()
    for day in range(1, 25 * 365):
        now = NOW + timedelta(days=day)
        following = certificates(data, NAME, now)
        if following is not data:
            changes += 1
            assert is_taken(following, data) and is_taken(data, following)
            certificate = x509.load_pem_x509_certificate(following[CERTIFICATE].encode())
            (signer,) = [a for a in authorities(following) if a.subject == certificate.issuer]
            assert signer.not_valid_after_utc > certificate.not_valid_after_utc
            assert len(authorities(following)) <= 2
            signers.add(signer.subject)
            expiry, data = certificate.not_valid_after_utc, following
        assert expiry > now
    assert len(signers) == 3 and changes > 25 * 365 / LIFETIME.days


def test_new_authority_waits_while_a_certificate_is_about_to_be_renewed() -> None:
    data = certificates({}, NAME, NOW)
    made = AUTHORITY_DUE - LIFETIME + RENEW_BEFORE + TRUSTED_BEFORE_USE / 2
    data = certificates(data, NAME, made)
    assert certificates(data, NAME, AUTHORITY_DUE) is data
    renewed = certificates(data, NAME, made + LIFETIME - RENEW_BEFORE)
    assert renewed[AUTHORITY] == data[AUTHORITY]
    both = certificates(renewed, NAME, made + LIFETIME - RENEW_BEFORE + SECOND)
    assert len(authorities(both)) == 2 and both[CERTIFICATE] == renewed[CERTIFICATE]


@pytest.mark.parametrize("key", [CERTIFICATE, KEY, AUTHORITY, AUTHORITY_KEY])
@pytest.mark.parametrize("change", [None, "", "nonsense", "another's"])
def test_certificate_with_missing_or_wrong_parts_is_created_again(
    key: str, change: str | None
) -> None:
    data = dict(certificates({}, NAME, NOW))
    other = certificates({}, NAME, NOW)
    if change is None:
        del data[key]
    else:
        data[key] = other[key] if change == "another's" else change
    made = certificates(data, NAME, NOW)
    assert certificates(made, NAME, NOW) is made and is_taken(made, made)


def test_certificate_for_another_name_is_replaced_by_the_same_authority() -> None:
    data = certificates({}, "other.team.macroserve.internal", NOW)
    made = certificates(data, NAME, NOW)
    assert made[CERTIFICATE] != data[CERTIFICATE] and made[AUTHORITY] == data[AUTHORITY]


def test_expired_authority_is_replaced() -> None:
    data = certificates({}, NAME, NOW)
    made = certificates(data, NAME, NOW + AUTHORITY_LIFETIME)
    assert len(authorities(made)) == 1 and made[AUTHORITY] != data[AUTHORITY]
