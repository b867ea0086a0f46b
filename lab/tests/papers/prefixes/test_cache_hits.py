"""Loads with shared prefixes: attainment, and cache hits relative to one large cache."""

from dataclasses import replace

import pytest
from support.experiment import EXPERIMENT

from macroserve.core.request import Slo
from macroserve.sim.rival_routing import Routing
from macroserve.workload.arrivals import Arrival
from macroserve.workload.lengths import Constant
from macroserve.workload.load import Load, SyntheticLoad, TraceLoad
from macroserve.workload.multi_turn import MultiTurn
from macroserve.workload.trace import Trace
from macroserve_lab.papers.prefixes.figures import (
    COMPARED,
    METRICS,
    CacheHits,
    Case,
    figure_of,
    scenario,
)

SLO = Slo(1.0, 0.1)
CLUSTER = replace(EXPERIMENT.scenario.cluster, num_instances=3)
CHATS = SyntheticLoad(2.0, 1.0, Constant(300), Constant(20), multi_turn=MultiTurn(4, 2.0))


def recorded(*block_ids: tuple[int, ...]) -> TraceLoad:
    rows = [Arrival(float(at), 600, 20, block_ids=ids) for at, ids in enumerate(block_ids)]
    return TraceLoad(Trace(tuple(rows)), 1.0)


def measured(load: Load, entry: str = Routing.ROUND_ROBIN.value, **given: float) -> list[float]:
    values = CacheHits("hits", scenario(CLUSTER, SLO, entry), load, **given).measure(0)
    return [values[f"hits, {metric}"] for metric in METRICS]


def test_hits_of_a_recorded_load_stand_beside_those_of_one_cache() -> None:
    attained, found, by_one = measured(recorded(*[(at % 5,) * 2 for at in range(30)]))
    assert attained == 1.0
    # One cache meets 5 prompts anew, and each of 3 instances all of them.
    assert found == pytest.approx(15 / 30 * 592 / 600)
    assert by_one == pytest.approx(15 / 25)


def test_load_that_repeats_nothing_has_as_many_hits_as_one_cache() -> None:
    assert measured(recorded(*[(at, at) for at in range(5)])) == [1.0, 0.0, 1.0]


def test_conversations_find_more_where_routing_knows_them() -> None:
    blind, knowing = (
        measured(CHATS, entry, duration_s=20.0, warm_up_s=5.0) for entry in COMPARED[:2]
    )
    assert blind[1] < knowing[1] and blind[2] < 0.9 < knowing[2]


def test_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = scenario(CLUSTER, Slo(1e-9, 0.1), COMPARED[0])
    served = []
    serve = type(strict).serve

    def serving(self, arrivals, **given):
        served.append((len(arrivals), given["num_before"], arrivals[-1].at_s))
        return serve(self, arrivals, **given)

    monkeypatch.setattr(type(strict), "serve", serving)
    CacheHits("hits", strict, CHATS, 20.0, 10.0).measure(0)
    ((number, num_before, last_s),) = served
    assert 0 < num_before < number / 2 and 20.0 < last_s < 30.0


def test_figure_has_a_row_for_each_metric_of_each_entry_and_case() -> None:
    cases = [Case(name, CLUSTER, SLO, CHATS) for name in ("calm", "busy")]
    made = figure_of("chats", cases)
    measurements = made.measurements
    assert len({each.key for each in measurements}) == 2 * len(COMPARED)
    keys = [f"{each.key}, {metric}" for each in measurements for metric in METRICS]
    values = {key: float(index) for index, key in enumerate(keys)}
    rows = made.rows(values)
    assert [row.ours for row in rows] == [*values.values()]
    first = rows[0]
    assert (first.case, first.strategy, first.metric) == ("calm", COMPARED[0], METRICS[0])
    assert all(row.is_summary for row in rows)
