"""Durations are written in few digits, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.units import format_seconds, parse_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0213, "21ms"),
        (0.00042, "0.42ms"),
        (0.3149, "310ms"),
        (0.996, "1s"),
        (1.549, "1.5s"),
        (-12.4, "-12s"),
        (-0.0049, "-4.9ms"),
        (123.4, "120s"),
        (86400.0, "86000s"),
    ],
)
def test_format_seconds_gives_two_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(1e-6, 1e9))
def test_formatted_duration_is_read_back_within_its_digits(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=0.051)
