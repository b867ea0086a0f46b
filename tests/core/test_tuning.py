"""The tuning refuses numbers out of their bounds."""

import pytest

from macroserve.core.tuning import Tuning


@pytest.mark.parametrize(
    ("number", "good", "bad"),
    [
        ("chunk_tokens", [1, 512], [0, -1]),
        ("late_value", [0.0, 1.0], [-0.1, 1.1]),
        ("kv_padding", [0.0, 1.0], [-0.1, 1.1]),
        ("kv_reserve", [0.0, 0.99], [-0.1, 1.0]),
        ("lending_buffer", [0.0, 1.0], [-0.1, 1.1]),
        ("offload_threshold_s", [0.0, 9.0], [-0.1]),
        ("lp_batch_size", [1], [0]),
        ("hp_free_share", [0.0, 0.99], [-0.1, 1.0]),
    ],
)
def test_tuning_out_of_its_bounds_is_refused(number, good, bad) -> None:
    for value in good:
        assert getattr(Tuning(**{number: value}), number) == value
    for value in bad:
        with pytest.raises(ValueError, match=f"{number} must be"):
            Tuning(**{number: value})


def test_tuning_over_stages_has_a_chunk_for_each() -> None:
    assert Tuning(chunk_tokens=100, late_value=0.4).over_stages(3) == Tuning(
        chunk_tokens=300, late_value=0.4
    )
