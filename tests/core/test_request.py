"""What a request and its targets may be."""

import pytest

from macroserve.core.request import Slo


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s", "tbt_s"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_targets_are_positive(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Slo(**{"ttft_s": 1.0, "tpot_s": 0.1, "tbt_s": 0.2, name: seconds})
