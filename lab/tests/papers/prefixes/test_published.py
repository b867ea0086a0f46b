"""Published benchmarks of prefix-aware routing: the setups, and the compared values."""

import pytest

from macroserve.sim.results import AT_END
from macroserve.sim.rival_routing import Routing
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.prefixes import figures
from macroserve_lab.papers.prefixes.figures import ENTRIES, FIGURES, HITS, WORLDS


@pytest.mark.parametrize("name", WORLDS)
def test_world_holds_its_requests_and_measures_every_rule(name: str) -> None:
    world = WORLDS[name]
    measured = FIGURES[name].measurements
    assert len({each.key for each in measured}) == len(measured) == len(ENTRIES)
    cluster = world.cluster
    longest = world.shared.num_tokens + world.workload.prompt.mean + world.workload.output.mean
    assert longest < cluster.max_model_len < cluster.num_kv_tokens
    routings = {each.goodput.experiment.scenario.routing for each in measured}
    assert routings == set(Routing)


def test_gain_is_over_the_publishers_baseline() -> None:
    measured = FIGURES["llm-d"].measurements
    values = {each.key: 10.0 for each in measured}
    values |= {f"{each.key}, {HITS}": 0.5 for each in measured}
    values |= {"llm-d round robin": 5.0, "llm-d unified": 20.0, "llm-d least load": 2.0}
    first, *rates = FIGURES["llm-d"].rows(values)
    assert (first.ours, first.paper) == (4.0, pytest.approx(2.11, abs=0.01))
    of_unified = {row.metric: row.ours for row in rates if row.strategy == "unified"}
    assert of_unified == {"requests/s": 20.0, "cache hits": 0.5}
    values["llm-d round robin"] = 0.0
    assert FIGURES["llm-d"].rows(values)[0].ours == 20.0 / WORLDS["llm-d"].lowest


@pytest.mark.parametrize("name", WORLDS)
def test_own_routing_finds_more_of_the_prompts_than_round_robin(name: str) -> None:
    found = {
        entry: WORLDS[name].experiment(entry).serve(2.0, 20.0, stop=AT_END).prefix_cache_hit_ratio
        for entry in ("round robin", "vllm, own routing", "unified")
    }
    assert found["round robin"] < min(found["vllm, own routing"], found["unified"])


def test_rate_held_comes_with_what_the_caches_have_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experiment, "goodput", lambda *_: 2.0)
    monkeypatch.setattr(figures, "DURATION_S", 20.0)
    own = figures._held("kthena", "unified")
    served = WORLDS["kthena"].experiment("unified").serve(2.0, 20.0)
    assert own.measure(seed=0) == {
        own.key: 2.0,
        f"{own.key}, {HITS}": served.prefix_cache_hit_ratio,
    }
    assert served.prefix_cache_hit_ratio > 0
