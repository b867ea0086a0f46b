"""Prefixes are sent with a handle, and malformed ones do no harm."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.held_prefixes import MAX_KEYS, pack_held, unpack_held
from macroserve.core.routing.prefixes import NUM_STEPS, STEP_TOKENS, HeldKey

held_keys = st.builds(
    HeldKey,
    st.integers(0, (1 << 48) - 1),
    st.sampled_from([STEP_TOKENS << step for step in range(NUM_STEPS)]),
)


@given(st.lists(held_keys))
def test_keys_after_the_wire_are_the_same_in_the_same_order(held: list[HeldKey]) -> None:
    assert unpack_held(pack_held(held)) == held


def test_keys_beyond_the_maximum_are_those_used_least_recently() -> None:
    held = [HeldKey(key, STEP_TOKENS) for key in range(MAX_KEYS + 5)]
    packed = pack_held(held)
    assert len(packed) < 160_000
    assert unpack_held(packed) == held[5:]


@pytest.mark.parametrize(
    "packed",
    [
        None,
        7,
        ["AAAAAAAAAA=="],
        "AAA",
        "AAAA!AAAAAA==",
        "\u00e4" * 8,
        b64encode(bytes(8)).decode(),
        b64encode(bytes(6) + bytes([NUM_STEPS])).decode(),
    ],
    ids=["none", "number", "list", "padding", "other signs", "umlauts", "cut off", "unknown step"],
)
def test_anything_else_raises_value_error(packed: object) -> None:
    with pytest.raises(ValueError):
        unpack_held(packed)
