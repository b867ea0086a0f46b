"""Access tokens open their audience for a time, and proofs of answers fit one call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.access_token import (
    LEEWAY_S,
    LIFETIME_S,
    AccessTokenError,
    Audience,
    check,
    is_proved,
    issue,
    proof,
)
from macroserve.api.keys import KeyRing, Purpose

OLD, NEW, BOTH, OTHER = (
    KeyRing.derived(secrets, Purpose) for secrets in (["old"], ["new"], ["new", "old"], ["other"])
)
CALLED = Audience(Purpose.GENERATION, "instance-3")
NOW = 1_800_000_000.0
TOKEN = issue(OLD, CALLED, NOW, "a nonce")

audiences = st.builds(Audience, st.sampled_from(Purpose), st.text(st.characters(codec="utf-8")))


@given(audiences, st.text(st.characters(codec="utf-8"), max_size=40))
def test_access_token_for_its_audience_is_accepted(audience: Audience, nonce: str) -> None:
    assert check(issue(OLD, audience, NOW, nonce), OLD, audience, NOW) in OLD.of(audience.purpose)


@given(audiences, audiences)
def test_access_token_for_another_audience_is_refused(one: Audience, other: Audience) -> None:
    if one == other:
        return
    with pytest.raises(AccessTokenError):
        check(issue(OLD, one, NOW, ""), OLD, other, NOW)


@given(st.data())
def test_access_token_with_any_change_is_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(TOKEN)))
    end = data.draw(st.integers(start, min(len(TOKEN), start + 4)))
    patch = data.draw(st.text(max_size=4) | st.text("ABCDwxyz0189-_.=", max_size=4))
    changed = TOKEN[:start] + patch + TOKEN[end:]
    # What one more signature says changes nothing; what the right one vouches for must be intact.
    parts = changed.split(".")
    if parts[0] == TOKEN.split(".")[0] and TOKEN.split(".")[1] in parts[1:]:
        return
    with pytest.raises(AccessTokenError):
        check(changed, OLD, CALLED, NOW)


@given(st.text())
def test_access_token_from_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(AccessTokenError):
        check(text, OLD, CALLED, NOW)


@pytest.mark.parametrize(
    ("late_s", "opens"),
    [
        (-LEEWAY_S - 1, False),
        (-LEEWAY_S, True),
        (0, True),
        (LIFETIME_S + LEEWAY_S, True),
        (LIFETIME_S + LEEWAY_S + 1, False),
    ],
)
def test_access_token_outside_its_validity_is_refused(late_s: float, opens: bool) -> None:
    if opens:
        check(TOKEN, OLD, CALLED, NOW + late_s)
        return
    with pytest.raises(AccessTokenError, match="clocks"):
        check(TOKEN, OLD, CALLED, NOW + late_s)


@pytest.mark.parametrize(
    ("caller", "called", "opens"),
    [
        (OLD, OLD, True),
        (OLD, BOTH, True),
        (BOTH, OLD, True),
        (BOTH, BOTH, True),
        (BOTH, NEW, True),
        (NEW, BOTH, True),
        (NEW, NEW, True),
        (OLD, NEW, False),
        (NEW, OLD, False),
        (OTHER, BOTH, False),
    ],
)
def test_access_token_with_a_shared_key_is_accepted(
    caller: KeyRing, called: KeyRing, opens: bool
) -> None:
    token = issue(caller, CALLED, NOW, "a nonce")
    if not opens:
        with pytest.raises(AccessTokenError, match="not signed with a known key"):
            check(token, called, CALLED, NOW)
        return
    key = check(token, called, CALLED, NOW)
    assert is_proved(proof(key, token, 200), caller, CALLED, token, 200)


@pytest.mark.parametrize(
    ("given_proof", "status", "token"),
    [
        ("", 200, TOKEN),
        ("é", 200, TOKEN),
        (proof(OLD.of(Purpose.GENERATION)[0], TOKEN, 200), 400, TOKEN),
        (proof(OLD.of(Purpose.GENERATION)[0], TOKEN, 200), 200, issue(OLD, CALLED, NOW, "b")),
        (proof(OLD.of(Purpose.CONTROL)[0], TOKEN, 200), 200, TOKEN),
        (proof(OTHER.of(Purpose.GENERATION)[0], TOKEN, 200), 200, TOKEN),
        (TOKEN.split(".")[1], 200, TOKEN),
    ],
)
def test_proof_of_an_answer_fits_only_its_key_call_and_status(
    given_proof: str, status: int, token: str
) -> None:
    assert not is_proved(given_proof, OLD, CALLED, token, status)


def test_access_token_contains_no_key() -> None:
    assert all(key.decode() not in TOKEN for key in OLD.of(Purpose.GENERATION))
