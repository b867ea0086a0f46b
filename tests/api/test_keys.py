"""Keys are derived from a secret by purpose, and each role gets some of them."""

import pytest

from macroserve.api.keys import (
    MAX_KEYS,
    PURPOSES,
    SHARED,
    KeyRing,
    KeysError,
    Purpose,
    Role,
    derived_key,
    hkdf_sha256,
    parse_keys,
)


def test_hkdf_for_rfc_5869_test_case_1_gives_its_value() -> None:
    given = hkdf_sha256(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert given.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_derived_keys_of_any_purpose_and_secret_differ_and_hold_no_secret() -> None:
    keys = {derived_key(secret, purpose) for secret in ("one", "two") for purpose in Purpose}
    assert len(keys) == 2 * len(Purpose)
    assert not any("one" in key or "two" in key for key in keys)


def test_key_ring_from_several_secrets_has_the_newest_first() -> None:
    ring = KeyRing.derived(["new", "old"], [Purpose.CELLS])
    expected = [derived_key(secret, Purpose.CELLS).encode() for secret in ("new", "old")]
    assert list(ring.of(Purpose.CELLS)) == expected


def test_key_ring_printed_shows_no_key() -> None:
    ring = KeyRing.derived(["secret"], Purpose)
    assert derived_key("secret", Purpose.CELLS) not in repr(ring)


@pytest.mark.parametrize("secrets", [[], [""], ["one", ""]])
def test_key_ring_without_a_key_is_refused(secrets: list[str]) -> None:
    with pytest.raises(KeysError):
        KeyRing.derived(secrets, Purpose)


@pytest.mark.parametrize(
    ("role", "lacks"),
    [
        (Role.HEAD, {Purpose.GENERATION}),
        (Role.INGRESS, {Purpose.HANDLES, Purpose.ORDERS, Purpose.CONTROL}),
        (Role.INSTANCE, {Purpose.CELLS, Purpose.ROUTING, Purpose.ORDERS}),
    ],
)
def test_role_has_only_the_keys_that_it_needs(role: Role, lacks: set[Purpose]) -> None:
    assert set(PURPOSES[role]) == set(SHARED) - lacks


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("one", ("one",)),
        ("one\n", ("one",)),
        ("two\none\n", ("two", "one")),
        (" two \r\n\n one", ("two", "one")),
        ("one\none\n", ("one",)),
    ],
)
def test_key_file_of_several_lines_has_a_key_per_line(text: str, keys: tuple[str, ...]) -> None:
    assert parse_keys(text) == keys


@pytest.mark.parametrize("text", ["", "\n \n", "\n".join(map(str, range(MAX_KEYS + 1)))])
def test_key_file_with_no_or_too_many_lines_is_refused(text: str) -> None:
    with pytest.raises(KeysError):
        parse_keys(text)
