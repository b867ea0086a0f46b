"""The cheapest configuration, verified on the whole load, or why there is none."""

import re
from dataclasses import replace
from random import Random

import pytest

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.capacity.planning import (
    InfeasibleError,
    Need,
    Piece,
    busiest,
    in_pieces,
    piece_served,
    search,
)
from macroserve.sim.hardware.devices import L20
from macroserve.sim.hardware.links import PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.results import StopRule
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.arrivals import Arrival, poisson
from macroserve.workload.datasets import WORKLOADS

pytestmark = pytest.mark.simulation

LENGTHS = WORKLOADS["ShareGPT"].lengths(Random(1))
SCENARIO = Scenario(
    ClusterSpec(MODELS["Mistral-7B"], L20, PCIE_4, 1, 1), STRATEGIES["vllm"], Slo(2.0, 0.1)
)


def load(*rates, stretch_s=20.0):
    return poisson(rates, stretch_s, LENGTHS, Random(2))


def find(need, scenario=SCENARIO, strategies=("vllm", "sarathi"), num_processes=1):
    tried = []
    chosen = [STRATEGIES[name] for name in strategies]
    return search(scenario, need, num_processes, tried.append, chosen), tried


def attained_in_pieces(scenario, arrivals, num_pieces):
    pieces = in_pieces(arrivals, num_pieces)
    outcomes = [scenario.serve(each.arrivals, num_before=each.num_before) for each in pieces]
    assert sum(each.requests for each in outcomes) == len(arrivals)
    return sum(each.attained for each in outcomes) / len(arrivals)


def attainment(candidate, need, num_instances):
    scenario = candidate.scenario
    cluster = replace(scenario.cluster, num_instances=num_instances)
    tried = replace(scenario, cluster=cluster, bounds=candidate.bounds)
    return tried.serve(need.arrivals, stop=StopRule(goal=need.goal)).attainment


@pytest.mark.parametrize("rate", [6.0, 12.0, 20.0])
def test_search_finds_the_fewest_devices_that_attain_the_goal(rate):
    need = Need(load(rate), 0.9, 8, 2)
    chosen, tried = find(need)
    assert chosen.num_instances is not None and chosen.num_instances * chosen.ranks <= 8
    assert chosen.attainment == attainment(chosen, need, chosen.num_instances) >= 0.9
    if chosen.num_instances > 1:
        assert attainment(chosen, need, chosen.num_instances - 1) < 0.9
    assert {candidate.ranks for candidate in tried} == {1, 2}
    assert {candidate.scenario.strategy.name for candidate in tried} == {"vllm", "sarathi"}
    found = [candidate for candidate in tried if candidate.num_devices is not None]
    best = min(found, key=lambda candidate: (candidate.num_devices, -candidate.attainment))
    assert (chosen.num_devices, chosen.attainment) == (best.num_devices, best.attainment)


def test_search_checks_the_whole_load_after_its_busiest_stretch():
    """The most tokens come late in few long prompts; what misses is the crowd at the start."""
    crowd = [Arrival(0.01 * i, 60, 60) for i in range(1500)]
    long = [Arrival(1000.0 + 3.0 * i, 4000, 1000) for i in range(50)]
    need = Need([*crowd, *long], 0.9, 16, 1)
    chosen, tried = find(need, strategies=("vllm",), num_processes=2)
    screened = tried[0]
    assert screened.num_instances is not None and chosen.num_instances is not None
    assert screened.num_instances < chosen.num_instances
    cluster = replace(chosen.scenario.cluster, num_instances=chosen.num_instances)
    scenario = replace(chosen.scenario, cluster=cluster, bounds=chosen.bounds)
    assert chosen.attainment == attained_in_pieces(scenario, need.arrivals, 2) >= 0.9
    assert attainment(chosen, need, chosen.num_instances) >= 0.9


def test_search_takes_the_smallest_cells_that_attain_the_goal():
    chosen, _ = find(Need(load(60.0), 0.5, 16, 1), strategies=("vllm",))
    assert chosen.num_instances is not None and chosen.num_instances > 4
    assert chosen.upper_bound == 4


def test_search_stops_on_candidates_with_more_devices_than_the_best():
    chosen, tried = find(
        Need(load(12.0), 0.9, 8, 1), replace(SCENARIO, strategy=STRATEGIES["unified"])
    )
    assert chosen.scenario.strategy.name == "unified"
    others = [candidate for candidate in tried if candidate.scenario.strategy.name != "unified"]
    assert {(each.num_instances, each.attainment) for each in others} == {(None, None)}
    assert {each.upper_bound for each in others} == {chosen.num_instances}


def test_in_pieces_has_each_request_once_after_a_lead_in():
    arrivals = [Arrival(float(second), 10, 10) for second in range(2000)]
    pieces = in_pieces(arrivals, 4)
    assert [each.arrivals[each.num_before :] for each in pieces] == [
        arrivals[start : start + 500] for start in range(0, 2000, 500)
    ]
    assert [each.num_before for each in pieces] == [0, 300, 300, 300]
    assert [each.arrivals[0].at_s for each in pieces] == [0.0, 200.0, 700.0, 1200.0]


@pytest.mark.parametrize("num_seconds", [1, 299, 599])
def test_in_pieces_of_a_short_load_is_one_piece(num_seconds):
    arrivals = [Arrival(float(second), 10, 10) for second in range(num_seconds)]
    assert in_pieces(arrivals, 4) == [Piece(arrivals, 0)]


def test_in_pieces_attain_together_as_the_whole_does():
    arrivals = load(4.0, 5.0, 6.0, stretch_s=400.0)
    scenario = replace(SCENARIO, cluster=replace(SCENARIO.cluster, num_instances=1))
    assert len(in_pieces(arrivals, 4)) == 3
    attained = attained_in_pieces(scenario, arrivals, 4)
    assert 0.1 < attained < 0.99
    assert attained == pytest.approx(scenario.serve(arrivals).attainment, abs=0.01)


def test_piece_ends_once_more_have_missed_than_may_in_all():
    arrivals = load(60.0)
    scenario = replace(SCENARIO, cluster=replace(SCENARIO.cluster, num_instances=1))
    whole = scenario.serve(arrivals)
    num_missed = whole.requests - whole.attained
    assert piece_served(scenario, num_missed, Piece(arrivals, 0)) == whole
    cut = piece_served(scenario, num_missed / 2, Piece(arrivals, 0))
    assert cut.requests < whole.requests and cut.requests - cut.attained > num_missed / 2


def test_busiest_stretch_starts_at_zero():
    arrivals = [Arrival(float(i), 10 if i < 50 else 100, 1) for i in range(100)]
    stretch = busiest(arrivals, 20.0)
    assert len(stretch) == 20
    assert stretch[0] == Arrival(0.0, 100, 1)
    assert busiest(arrivals, 1000.0) == arrivals


@pytest.mark.parametrize(
    ("slo", "sentence"),
    [
        (Slo(2.0, 0.001), r"spec.slo.tpot of 0.001 s is less than a decode step alone"),
        (Slo(2.0, 0.1, 0.001), r"spec.slo.tbt of 0.001 s is less than a decode step alone"),
        (Slo(0.001, 0.1), r"spec.slo.ttft of 0.001 s is less than the .* s that a prompt"),
    ],
)
def test_search_with_impossible_targets_names_them(slo, sentence):
    with pytest.raises(InfeasibleError, match=sentence):
        find(Need(load(2.0), 0.9, 4, 2), replace(SCENARIO, slo=slo))


def test_search_with_too_few_devices_reports_the_load_they_hold():
    need = Need(load(60.0), 0.9, 1, 1)
    sentence = "no configuration on 1 devices keeps 90% .* with vllm they do if ([0-9]+)% as many"
    with pytest.raises(InfeasibleError, match=sentence) as raised:
        find(need)
    held = int(re.search(sentence, str(raised.value)).group(1))
    kept, lost = (SCENARIO.serve(load(60.0 * (held + off) / 100)).attainment for off in (-10, 10))
    assert kept >= need.goal > lost


def test_search_with_a_model_that_fits_nowhere_says_so():
    big = replace(SCENARIO, cluster=replace(SCENARIO.cluster, model=MODELS["Qwen2-72B"]))
    with pytest.raises(ValueError, match="leave no memory"):
        find(Need(load(2.0), 0.9, 8, 2), big)
