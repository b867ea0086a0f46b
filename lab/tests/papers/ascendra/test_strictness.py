"""Ascendra's targets: the strictest scale of each strategy."""

import pytest

from macroserve_lab.papers.ascendra import figures
from macroserve_lab.papers.ascendra.cases import CHAT


def _values(shares: dict[str, float]) -> dict[str, float]:
    """Return the value of each measurement: the one in `shares`, or else 0.9."""
    return {each.key: 0.9 for each in figures.STRICTNESS.measurements} | shares


def _rows(shares: dict[str, float]) -> dict[tuple[str, str], float]:
    return {(row.case, row.strategy): row.ours for row in figures.STRICTNESS.rows(_values(shares))}


def _key(name: str, scale: str) -> str:
    return f"strictness {CHAT.name} {name} {scale}"


def test_strictness_scales_both_targets_at_one_rate():
    measured = {each.key: each for each in figures.STRICTNESS.measurements}
    assert len(measured) == 3 * 4 * 11
    strict = measured[_key("ascendra", "0.5")]
    slo = strict.experiment.scenario.slo
    assert (slo.ttft_s, slo.tpot_s, strict.rate) == (0.5, 0.075, 9.0)


def test_strictness_with_all_scales_kept_is_the_strictest():
    assert _rows({})[CHAT.name, "prefill-first"] == 0.125


def test_strictness_ignores_scales_kept_beyond_a_miss():
    assert _rows({_key("prefill-first", "0.5"): 0.89})[CHAT.name, "prefill-first"] == 0.707


def test_strictness_without_a_kept_scale_is_beyond_the_loosest():
    assert _rows({_key("prefill-first", "4"): 0.5})[CHAT.name, "prefill-first"] == 8.0


def test_strictness_gain_is_over_the_looser_of_both_baselines():
    shares = {_key("prefill-first", "0.5"): 0.5, _key("sarathi", "0.125"): 0.5}
    gain = _rows(shares)["up to", "ascendra over baselines"]
    assert gain == pytest.approx(0.707 / 0.125)
