"""Deployments and experiments: their contents, and reproducibility."""

from dataclasses import replace

import pytest

from macroserve.core.request import Slo
from macroserve.core.scheduler.blocks import BlockGroups
from macroserve.core.strategies import STRATEGIES
from macroserve.core.tuning import Tuning
from macroserve.sim.hardware.devices import A100_40GB, H100, H200, L20
from macroserve.sim.hardware.links import NVLINK_3, PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.results import AT_END, as_client
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.measurements import Metric
from macroserve_lab.slo_rules import as_ecoserve

LLAMA = ClusterSpec(MODELS["Llama-30B"], L20, PCIE_4, ranks=4, num_instances=2)
OPT = ClusterSpec(MODELS["OPT-13B"], A100_40GB, NVLINK_3, ranks=1, num_instances=1)
SLO = Slo(5.0, 0.1)


def experiment(name="vllm", cluster=LLAMA, **fields):
    scenario = Scenario(cluster, STRATEGIES[name], SLO, **fields)
    return Experiment(scenario, WORKLOADS["ShareGPT"])


def test_cache_fills_the_memory_that_weights_leave():
    per_token = 2 * 40 * 40 * 128 * 2
    free = 0.9 * 40 * 2**30 - 1e9 - OPT.shape.weight_bytes
    assert OPT.num_kv_tokens == int(free / per_token)
    assert replace(OPT, kv_bytes=12e9).num_kv_tokens == int(12e9 / per_token)


def test_model_that_leaves_no_memory_is_refused():
    with pytest.raises(ValueError, match=r"13\d GB.*1 x A100-40GB"):
        replace(OPT, model=MODELS["OPT-66B"]).instance_spec(STRATEGIES["vllm"], SLO)


@pytest.mark.parametrize(("model", "blocks"), [("OPT-13B", 0.5), ("Llama3.1-8B", 2.0)])
def test_hidden_states_per_block_follow_the_model(model, blocks):
    engine = replace(OPT, model=MODELS[model]).instance_spec(STRATEGIES["aptserve"], SLO)
    assert engine.config.hidden_states_per_block == engine.config.block_size / blocks


@pytest.mark.parametrize("name", STRATEGIES)
def test_experiment_with_the_same_seed_gives_the_same_outcome(name):
    runs = [experiment(name).serve(4.0, 10.0, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].requests != runs[2].requests
    assert runs[0].decided


def test_experiment_counts_only_requests_after_the_warm_up():
    outcome = experiment().serve(5.0, 20.0)
    assert outcome.requests == pytest.approx(100, abs=40)


def test_experiment_at_a_rate_beyond_the_goodput_misses():
    few = experiment(tuning=Tuning(chunk_tokens=256))
    rate = few.goodput(0.9, 20.0, 1.0, 20.0)
    assert 1.0 < rate < 20.0
    assert few.serve(rate, 20.0).attainment >= 0.9
    assert few.serve(2 * rate, 20.0).attainment < 0.9


def test_ecoserve_rule_attains_more_than_the_client_rule_with_phases():
    """Prompts that are in wait for the switch to decoding."""

    def attainment(slo_rule):
        cell = replace(LLAMA, num_instances=4)
        workload, slo = WORKLOADS["LongBench"], Slo(15.0, 0.1)
        scenario = Scenario(cell, STRATEGIES["ecoserve"], slo, slo_rule)
        return Experiment(scenario, workload).serve(1.5, 40.0).attainment

    assert attainment(as_ecoserve) > 0.8 > 0.5 > attainment(as_client)


def test_foreseen_lengths_reach_the_schedulers():
    """Memory is given for a whole response at once, which is more where it gets longer."""
    cluster = ClusterSpec(MODELS["OPT-13B"], A100_40GB, NVLINK_3, 1, 1, kv_bytes=4e9)
    scenario = Scenario(cluster, STRATEGIES["econoserve"], Slo(1e6, 1e6))
    guessing = Experiment(scenario, WORKLOADS["ShareGPT, vLLM's"])
    outcomes = [
        replace(guessing, foresight=foresight).serve(2.0, 30.0, stop=AT_END)
        for foresight in (None, 0.0, 1.0)
    ]
    assert len({Metric.NORMALISED_LATENCY.of(outcome) for outcome in outcomes}) == 3
    assert len({outcome.requests for outcome in outcomes}) == 1


def test_cache_smaller_than_the_model_length_still_serves():
    small = replace(OPT, kv_bytes=4e9)
    assert small.num_kv_tokens < small.max_model_len and small.num_kv_tokens % small.block_size
    assert experiment(cluster=small).serve(0.5, 20.0).attained > 0


def test_instance_latency_includes_the_rebuild_time():
    engine = OPT.instance_spec(STRATEGIES["aptserve"], SLO)
    latency = engine.latency()
    assert latency.rebuild_s_per_token == pytest.approx(1e-6, rel=0.5)


def test_windows_leave_memory_for_more_requests():
    """Gemma has 10 layers that attend to all tokens, and 52 others: seven groups of ten."""
    gemma = ClusterSpec(MODELS["Gemma3-27B"], H100, NVLINK_3, ranks=2, num_instances=1)
    config = gemma.instance_spec(STRATEGIES["unified"], SLO).config
    assert len(config.block_groups) == 7
    full = replace(gemma, model=replace(gemma.model, window=None))
    assert config.num_blocks == full.num_kv_tokens // full.block_size * 62 // 10
    each = BlockGroups(config.block_groups, 32_000).decoding.blocks_for(32_000)
    assert config.num_blocks / each > 4 * full.num_kv_tokens / 32_000


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        ("Mixtral-8x7B", 2),
        ("Qwen3-30B-A3B", 1),
        ("gpt-oss-20b", 1),
        ("Gemma3-27B", 1),
        ("DeepSeek-V3", 16),
    ],
)
def test_models_of_each_kind_serve_a_load(model, ranks):
    cluster = ClusterSpec(MODELS[model], H200, NVLINK_3, ranks=ranks, num_instances=1)
    result = experiment("unified", cluster).serve(1.0, 10.0)
    assert result.attained == result.requests > 0
