"""Mooncake's conversations, with a small similar trace."""

import pytest

from macroserve.workload.arrivals import Arrival
from macroserve.workload.trace import Trace
from macroserve_lab.papers.prefixes.figures import (
    COMPARED,
    STRETCH_S,
    TIME_SCALES,
    CacheHits,
    mooncake,
)

TRACE = Trace(
    tuple(Arrival(100.0 * at, 1100, 9, block_ids=(at % 2, 7, 100 + at)) for at in range(12))
)


def test_twice_the_instances_serve_the_start_of_the_trace_in_half_the_time() -> None:
    measurements = mooncake(TRACE).measurements
    assert len(measurements) == len(TIME_SCALES) * len(COMPARED)
    ends_s = {}
    for each in measurements:
        assert isinstance(each, CacheHits)
        arrivals = list(each.load.arrivals(0))
        assert len(arrivals) == 9
        ends_s[each.scenario.cluster.num_instances] = arrivals[-1].at_s
    assert ends_s == {8: 800.0, 16: 400.0}
    assert ends_s[8] < STRETCH_S


def test_measurement_of_another_trace_is_another_one() -> None:
    other = Trace((*TRACE.rows[:-4], TRACE.rows[-4]._replace(num_prompt_tokens=1101)))
    assert str([*mooncake(other).measurements]) != str([*mooncake(TRACE).measurements])


def test_figure_of_a_trace_without_block_ids_is_refused() -> None:
    silent = Trace(tuple(row._replace(block_ids=()) for row in TRACE.rows))
    with pytest.raises(ValueError, match="no hash_ids"):
        mooncake(silent)
