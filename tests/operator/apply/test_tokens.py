"""The keys of a deployment follow its secret."""

from datetime import UTC, datetime, timedelta

import pytest

from macroserve.api.keys import MAX_KEYS, PURPOSES, SHARED, Purpose, Role, derived_key
from macroserve.operator.apply.tokens import KEEP_FORMER, Keys, rotated

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def keys(*secrets: str) -> Keys:
    return {p: tuple(derived_key(secret, p) for secret in secrets) for p in SHARED}


@pytest.mark.parametrize(
    ("secrets", "held", "since", "expected"),
    [
        pytest.param("a", {}, None, (keys("a"), None), id="new"),
        pytest.param("a", keys("a"), None, (keys("a"), None), id="as it should be"),
        pytest.param("b", keys("a"), None, (keys("b", "a"), NOW), id="changed"),
        pytest.param(
            "b",
            keys("b", "a"),
            NOW - KEEP_FORMER,
            (keys("b", "a"), NOW - KEEP_FORMER),
            id="changed lately",
        ),
        pytest.param(
            "b",
            keys("b", "a"),
            NOW - KEEP_FORMER - SECOND,
            (keys("b"), None),
            id="changed long ago",
        ),
        pytest.param(
            "c", keys("b", "a"), NOW - KEEP_FORMER, (keys("c", "b", "a"), NOW), id="changed again"
        ),
        pytest.param("a", keys("b", "a"), NOW - SECOND, (keys("a", "b"), NOW), id="changed back"),
        pytest.param("b", keys("b", "a"), None, (keys("b", "a"), NOW), id="the time was lost"),
        pytest.param("b", {}, NOW, (keys("b"), None), id="former keys taken out at once"),
        pytest.param("ba", keys("a"), None, (keys("b", "a"), None), id="both listed by a person"),
    ],
)
def test_key_files_follow_the_secret(
    secrets: str, held: Keys, since: datetime | None, expected: tuple[Keys, datetime | None]
) -> None:
    rotation = rotated(secrets, held, since, NOW)
    assert (rotation.keys, rotation.since) == expected


def test_new_purpose_gets_its_key() -> None:
    held = {p: k for p, k in keys("a").items() if p is not Purpose.ROUTING}
    assert rotated("a", held, None, NOW).keys == keys("a")


def test_secret_changed_many_times_has_a_bounded_number_of_keys() -> None:
    held: Keys = {}
    for secret in "abcdefg":
        held = rotated(secret, held, NOW, NOW).keys
    assert all(len(held[p]) == MAX_KEYS and held[p][0] == derived_key("g", p) for p in SHARED)


def test_keys_of_all_roles_are_made() -> None:
    assert {p for role in Role for p in PURPOSES[role]} == set(SHARED)
