"""Simulations report every field of a manifest that they ignore."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import crd
from support.manifests import edited

from macroserve.api.manifest import parse
from macroserve.cli.deployment_options import DeploymentOptions
from macroserve.cli.simulated_deployment import SimulatedDeployment
from macroserve.core.strategy import HybridCache
from macroserve.sim.hardware.host import VLLM_HOST, Host
from macroserve.sim.hardware.models import ARCHITECTURES, MODELS
from macroserve.sim.hardware.step_time import StepTime

PARTS = (
    *("spec.model", "spec.engine", "spec.scheduling", "spec.slo"),
    *("spec.priority", "spec.mitosis", "spec.autoscaling"),
)

Edit = tuple[str, Any]

ADAPTERS = [{"name": "sql", "source": "/sql"}]
AUTOSCALING = ("spec.autoscaling", {"minInstances": 1, "maxInstances": 3})

HONOURED: dict[str, tuple[Any, *tuple[Edit, ...]]] = {
    "spec.model.maxModelLen": (1024,),
    # Engines with adapters keep no hidden states; the loads name none.
    "spec.model.adapters": (ADAPTERS, ("spec.scheduling.strategy", "aptserve")),
    "spec.slo.ttft": ("9s",),
    "spec.slo.tpot": ("90ms",),
    "spec.slo.tbt": ("900ms",),
    "spec.engine.tensorParallel": (2,),
    "spec.engine.pipelineParallel": (2,),
    "spec.engine.hybridCache": ("Off", ("spec.scheduling.strategy", "aptserve")),
    "spec.engine.prefixCaching": ("Off",),
    "spec.engine.blockSize": (64,),
    "spec.engine.kvCacheMemory": ("8GiB",),
    "spec.engine.maxNumSeqs": (8,),
    "spec.engine.maxBatchTokens": (4096,),
    "spec.scheduling.strategy": ("vllm",),
    "spec.scheduling.ordering": ("SJF", ("spec.scheduling.strategy", "vllm")),
    "spec.scheduling.dropLate": (True,),
    "spec.scheduling.maxLateWait": ("9s",),
    "spec.scheduling.tuning.chunkTokens": (64, ("spec.scheduling.strategy", "sarathi")),
    "spec.scheduling.tuning.lateValue": (0.4, ("spec.scheduling.strategy", "aptserve")),
    "spec.scheduling.tuning.kvPadding": (0.4, ("spec.scheduling.strategy", "econoserve")),
    "spec.scheduling.tuning.kvReserve": (0.4, ("spec.scheduling.strategy", "econoserve")),
    "spec.scheduling.tuning.lendingBuffer": (0.4, ("spec.scheduling.strategy", "econoserve")),
    "spec.scheduling.tuning.offloadThreshold": ("9s",),
    "spec.scheduling.tuning.lpBatchSize": (8, ("spec.scheduling.strategy", "ascendra")),
    "spec.scheduling.tuning.hpFreeShare": (0.4, ("spec.scheduling.strategy", "ascendra")),
    "spec.priority.highPriorityRatio": (0.5,),
    "spec.mitosis.lowerBound": (1,),
    "spec.mitosis.upperBound": (9,),
}
"""Fields that change the simulation, with another value and further changes of the manifest."""

DECIDED_BY_PLAN = {
    "spec.engine.pipelineParallel",
    "spec.engine.kvCacheMemory",
    "spec.priority.highPriorityRatio",
    "spec.mitosis.lowerBound",
    "spec.mitosis.upperBound",
}
"""Fields of these that a plan decides."""

TOLD = {
    "spec.engine.dtype": ("float32", "rates are for 16 bits"),
    "spec.engine.args": ({"maxLogprobs": 3, "quantization": "fp8"}, "maxLogprobs, quantization"),
    "spec.engine.hostCacheMemory": ("64GiB", "devices' caches alone"),
}
"""Fields that are not simulated, with a part of the message."""

CACHE = "--start-up says how long a start takes"
WITHOUT_EFFECT: dict[str, tuple[Any, str, *tuple[Edit, ...]]] = {
    "spec.model.servedName": ("other", "a name in the API"),
    "spec.model.cache.claim": ("weights", CACHE),
    "spec.model.cache.hostPath": ("/weights", CACHE),
    "spec.model.cache.image": ("weights:1", CACHE),
    "spec.model.cache.readOnly": (True, CACHE, ("spec.model.cache.claim", "weights")),
    "spec.engine.type": (
        "Emulated",
        "--device and --model name what is simulated, also in an emulated engine's place",
    ),
    "spec.engine.rehearse": (
        "L20-48GB",
        "--device names what is simulated, also in a rehearsal's place",
        ("spec.engine.type", "vLLM"),
    ),
    "spec.scheduling.maxQueueWait": (
        "9s",
        "simulate tells after the run whether requests waited longer "
        "(test_simulated_wait_beyond_the_endpoints_is_told); a plan keeps targets that are shorter",
    ),
    "spec.slo.allowRequestTargets": (True, "no request of a load brings targets of its own"),
    "spec.autoscaling.minInstances": (2, "--autoscale names the bounds", AUTOSCALING),
    "spec.autoscaling.maxInstances": (9, "--autoscale names the bounds", AUTOSCALING),
}
"""Fields without effect in virtual time, with another value and the reason."""

ELSEWHERE = {
    "spec.model.source": "read_model reads the checkpoint's config.json",
    "spec.slo.attainment": "the goal of a plan, and of the autoscaler",
    "spec.slo.classes": "the requests carry them "
    "(test_simulated_classes_are_judged_by_their_own_targets)",
    "spec.autoscaling.stabilization.up": "AutoscaleOptions.limits",
    "spec.autoscaling.stabilization.down": "AutoscaleOptions.limits "
    "(test_simulate_autoscaled_takes_the_windows_of_the_manifest)",
}
"""Fields that affect a simulation outside of its scenario, and where."""


def leaves(path: str) -> Iterator[str]:
    for name, schema in crd.fields_at(path)["properties"].items():
        if schema.get("properties"):
            yield from leaves(f"{path}.{name}")
        else:
            yield f"{path}.{name}"


def simulated(*edits: Edit, model: str = "OPT-13B") -> SimulatedDeployment:
    options = DeploymentOptions(manifest=Path(), device="H100-80GB", model=model)
    return SimulatedDeployment.of(parse(edited(*edits)), options)


def test_each_field_is_honoured_or_told_or_has_a_reason() -> None:
    tables = (HONOURED, TOLD, WITHOUT_EFFECT, ELSEWHERE)
    listed = [path for table in tables for path in table]
    assert sorted(listed) == sorted(path for part in PARTS for path in leaves(part))


@pytest.mark.parametrize("path", HONOURED)
def test_honoured_field_changes_what_is_simulated(path: str) -> None:
    value, *others = HONOURED[path]
    with_it, without = simulated(*others, (path, value)), simulated(*others)
    assert with_it.scenario() != without.scenario()
    if path != "spec.scheduling.ordering":
        is_decided = path in DECIDED_BY_PLAN
        assert (with_it.to_plan() == without.to_plan()) == is_decided
    assert not [*with_it.not_simulated(), *without.not_simulated()]


def test_plan_with_an_ordering_is_refused() -> None:
    ordered = simulated(("spec.scheduling.strategy", "vllm"), ("spec.scheduling.ordering", "SJF"))
    with pytest.raises(ValueError, match=r"leave spec\.scheduling\.ordering out"):
        ordered.to_plan()


@pytest.mark.parametrize("path", TOLD)
def test_field_that_is_not_simulated_is_told_in_a_sentence(path: str) -> None:
    value, part = TOLD[path]
    found = simulated((path, value))
    (sentence,) = found.not_simulated()
    assert sentence.startswith(f"{path} is not simulated: ") and part in sentence


@pytest.mark.parametrize("path", WITHOUT_EFFECT)
def test_field_without_effect_changes_nothing(path: str) -> None:
    value, _, *others = WITHOUT_EFFECT[path]
    with_it, without = simulated(*others, (path, value)), simulated(*others)
    assert with_it.scenario() == without.scenario()
    assert with_it.to_plan() == without.to_plan()


# -- hidden states


def strategy(name: str) -> Edit:
    return ("spec.scheduling.strategy", name)


def hybrid(setting: str) -> Edit:
    return ("spec.engine.hybridCache", setting)


SPECULATION = ("spec.engine.args.speculativeConfig", {"method": "mtp"})


@pytest.mark.parametrize(
    ("model", "edits", "rule"),
    [
        ("OPT-13B", [strategy("aptserve")], HybridCache.VALUE),
        ("OPT-13B", [strategy("unified")], HybridCache.CHEAP),
        ("OPT-13B", [strategy("vllm")], HybridCache.NEVER),
        ("OPT-13B", [strategy("vllm"), hybrid("On")], HybridCache.CHEAP),
        ("OPT-13B", [strategy("aptserve"), hybrid("Off")], HybridCache.NEVER),
        # Keys are rotated, which unified's rule finds too slow.
        ("Llama-30B", [strategy("unified")], HybridCache.NEVER),
        ("Llama-30B", [strategy("unified"), hybrid("On")], HybridCache.CHEAP),
        ("Llama-30B", [strategy("aptserve")], HybridCache.VALUE),
        # Heads share keys and values, which take less than hidden states.
        ("Llama3.1-8B", [strategy("aptserve")], HybridCache.NEVER),
        ("Qwen-14B", [strategy("aptserve")], HybridCache.NEVER),
        ("DeepSeek-V3", [strategy("aptserve")], HybridCache.NEVER),
        ("OPT-13B", [strategy("aptserve"), ("spec.model.adapters", ADAPTERS)], HybridCache.NEVER),
        ("OPT-13B", [strategy("aptserve"), SPECULATION], HybridCache.NEVER),
        (
            "OPT-13B",
            [strategy("aptserve"), ("spec.engine.args.quantization", "awq")],
            HybridCache.NEVER,
        ),
        (
            "OPT-13B",
            [strategy("aptserve"), ("spec.engine.args.kv_cache_dtype", "fp8")],
            HybridCache.NEVER,
        ),
        (
            "OPT-13B",
            [strategy("aptserve"), ("spec.engine.args.attentionBackend", "FLASHINFER")],
            HybridCache.NEVER,
        ),
        (
            "OPT-13B",
            [strategy("aptserve"), ("spec.engine.hostCacheMemory", "64GiB")],
            HybridCache.NEVER,
        ),
        (
            "OPT-13B",
            [strategy("aptserve"), ("spec.engine.pipelineParallel", 2)],
            HybridCache.NEVER,
        ),
        (
            "OPT-13B",
            [strategy("aptserve"), ("spec.engine.prefixCaching", "On")],
            HybridCache.NEVER,
        ),
    ],
)
def test_hidden_states_are_kept_where_engines_keep_them(
    model: str, edits: list[Edit], rule: HybridCache
) -> None:
    assert simulated(*edits, model=model).scenario().strategy.hybrid_cache is rule


@pytest.mark.parametrize(
    ("edits", "ahead"),
    [
        ([strategy("unified"), hybrid("Off")], True),
        ([strategy("aptserve")], False),
        ([strategy("unified"), ("spec.engine.pipelineParallel", 2)], False),
    ],
)
def test_step_hides_the_host_where_engines_schedule_ahead(edits: list[Edit], ahead: bool) -> None:
    scenario = simulated(*edits).scenario()
    cluster = scenario.cluster
    alone = StepTime(cluster.shape, cluster.device, cluster.link, Host(0, 0))
    host_s = VLLM_HOST.step_s + 64 * VLLM_HOST.sequence_s
    hidden_s = host_s if ahead else 0.0
    work = ((), 64, 32000)
    took_s = cluster.step_time(scenario.strategy).seconds(*work)
    assert took_s == pytest.approx(alone.seconds(*work) + host_s - hidden_s)
    assert alone.seconds(*work) > host_s


def test_pipeline_longer_than_the_model_is_refused() -> None:
    sentence = "pipelineParallel is 41, must be at most the number of layers of the model, which is"
    with pytest.raises(ValueError, match=f"{sentence} 40"):
        simulated(("spec.engine.pipelineParallel", 41)).scenario()
    simulated(("spec.engine.pipelineParallel", 40)).scenario()


def test_plan_tries_each_strategy_with_the_setting() -> None:
    scenario, strategies = simulated(strategy("vllm"), hybrid("On")).to_plan()
    assert scenario.strategy.keeps_hidden and all(each.keeps_hidden for each in strategies)
    scenario, strategies = simulated(strategy("aptserve"), hybrid("Off")).to_plan()
    assert not scenario.strategy.keeps_hidden
    assert not any(each.keeps_hidden for each in strategies)
    # A candidate has one stage, whatever the manifest has, and may keep hidden states.
    scenario, _ = simulated(strategy("aptserve"), ("spec.engine.pipelineParallel", 2)).to_plan()
    assert scenario.strategy.keeps_hidden


@pytest.mark.parametrize("model", ["Mistral-7B", "Qwen3-32B", "DeepSeek-V3"])
def test_hidden_states_of_a_model_that_cannot_keep_them_are_refused_if_asked_for(
    model: str,
) -> None:
    asked = simulated(hybrid("On"), model=model)
    for build in (asked.scenario, asked.to_plan):
        with pytest.raises(ValueError, match=r"^spec\.engine\.hybridCache is On, but .*") as found:
            build()
        assert "\n" not in str(found.value)


# -- models


def test_named_models_have_an_architecture_each() -> None:
    assert ARCHITECTURES.keys() == MODELS.keys()


OPT_CONFIG = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 512,
    "ffn_dim": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, None),
        ({"architectures": ["GPT2LMHeadModel"]}, "it does not support the attention of GPT2LMHead"),
        ({"architectures": None}, "attention of a model without an architecture"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights"),
        ({"dual_chunk_attention_config": {"chunk_size": 9}}, "dual chunk attention"),
        ({"sliding_window": 128}, "sliding window"),
    ],
)
def test_checkpoint_tells_whether_its_model_can_keep_hidden_states(
    tmp_path: Path, config: dict[str, Any], reason: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OPT_CONFIG | config))
    asked = simulated(hybrid("On"), model=str(tmp_path))
    if reason is None:
        assert asked.scenario().strategy.keeps_hidden
    else:
        with pytest.raises(ValueError, match=reason):
            asked.scenario()
