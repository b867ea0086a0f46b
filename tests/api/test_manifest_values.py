"""A valid manifest becomes frozen values with defaults and units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manifests import AUTOSCALING, GOOD, edited

from macroserve.api.manifest import parse
from macroserve.core.request import Slo
from macroserve.core.slo_class import SloClass
from macroserve.core.strategies import STRATEGIES


def test_manifest_with_required_fields_alone_has_the_defaults() -> None:
    manifest = parse(GOOD)
    spec = manifest.spec
    assert (manifest.name, manifest.served_name) == ("llama", "llama")
    assert manifest.slo == Slo(ttft_s=2.0, tpot_s=0.1, tbt_s=None)
    assert manifest.strategy is STRATEGIES["unified"]
    assert (spec.engine.tensor_parallel, spec.engine.pipeline_parallel) == (1, 1)
    assert (spec.engine.hybrid_cache, spec.engine.dtype) == ("Auto", "auto")
    assert spec.engine.prefix_caching == "Auto"
    assert (spec.engine.block_size, spec.engine.kv_cache_bytes) == (None, None)
    assert (spec.engine.max_num_seqs, spec.engine.max_batch_tokens) == (None, None)
    assert spec.engine.args == {}
    assert spec.slo.attainment == 0.9
    assert spec.priority.high_priority_ratio == "Auto"
    assert spec.scheduling.drop_late is False
    assert spec.scheduling.max_queue_wait_s == 300.0
    assert spec.scheduling.max_late_wait_s is None
    assert spec.ingress.stream_interval == 1
    assert (spec.ingress.replica_bounds, spec.autoscaling, spec.template) == ((2, 2), None, None)


@pytest.mark.parametrize(("tbt", "tbt_s"), [("150ms", 0.15), (None, None)])
def test_manifest_with_tbt_sets_the_time_between_tokens(
    tbt: str | None, tbt_s: float | None
) -> None:
    assert parse(edited(("spec.slo.tbt", tbt))).slo == Slo(2.0, 0.1, tbt_s)


def test_manifest_with_every_field_keeps_all_values() -> None:
    template = {"spec": {"nodeSelector": {"gpu": "l20"}, "tolerations": [{"key": "x"}]}}
    manifest = parse(
        edited(
            ("metadata.labels", {"team": "a"}),
            ("spec.model.servedName", "chat"),
            ("spec.engine.kvCacheMemory", "2GiB"),
            ("spec.engine.hostCacheMemory", "64GiB"),
            ("spec.engine.hybridCache", False),
            ("spec.engine.prefixCaching", True),
            ("spec.engine.args", {"maxLogprobs": 5, "hfOverrides": {"aB": [None]}, "seed": 1.5}),
            ("spec.priority.highPriorityRatio", 0.33),
            (
                "spec.scheduling",
                {
                    "strategy": "ecoserve",
                    "dropLate": True,
                    "maxQueueWait": "1m30s",
                },
            ),
            ("spec.autoscaling", AUTOSCALING),
            ("spec.autoscaling.stabilization", {"up": "0s", "down": "1m30s"}),
            ("spec.template", template),
        )
    )
    spec = manifest.spec
    assert manifest.served_name == "chat"
    assert spec.engine.kv_cache_bytes == 2 * 2**30
    assert spec.engine.host_cache_bytes == 64 * 2**30
    assert spec.engine.hybrid_cache == "Off", "YAML reads a bare Off as false"
    assert spec.engine.prefix_caching == "On", "and On as true"
    assert spec.engine.args == {"max_logprobs": 5, "hf_overrides": {"aB": [None]}, "seed": 1.5}
    assert spec.priority.high_priority_ratio == 0.33
    assert manifest.strategy is STRATEGIES["ecoserve"]
    assert spec.scheduling.drop_late
    assert spec.scheduling.max_queue_wait_s == 90.0
    assert spec.autoscaling is not None
    assert (spec.autoscaling.min_instances, spec.autoscaling.max_instances) == (2, 8)
    assert spec.autoscaling.stabilization.up_s == 0.0
    assert spec.autoscaling.stabilization.down_s == 90.0
    assert spec.template == template


@pytest.mark.parametrize(
    ("ingress", "bounds"),
    [
        ({"replicas": 3}, (3, 3)),
        ({"maxReplicas": 5}, (2, 5)),
        ({"maxReplicas": 1}, (1, 1)),
        ({"minReplicas": 1, "maxReplicas": 5}, (1, 5)),
        ({"minReplicas": 4, "maxReplicas": 4}, (4, 4)),
    ],
)
def test_ingress_has_a_fixed_number_of_replicas_or_bounds(
    ingress: dict[str, int], bounds: tuple[int, int]
) -> None:
    assert parse(edited(("spec.ingress", ingress))).spec.ingress.replica_bounds == bounds


@pytest.mark.parametrize("instances", [2, 8])
def test_manifest_with_instances_at_autoscaling_bounds_is_valid(instances: int) -> None:
    document = edited(("spec.autoscaling", AUTOSCALING), ("spec.instances", instances))
    assert parse(document).spec.instances == instances


def test_manifest_with_the_smallest_cell_that_can_split_is_valid() -> None:
    document = edited(("spec.mitosis", {"lowerBound": 3, "upperBound": 5}))
    assert parse(document).spec.mitosis.upper_bound == 5


@given(st.integers(1, 10**6), st.integers(0, 59), st.integers(0, 999))
def test_durations_with_units_are_parsed_to_seconds(
    minutes: int, seconds: int, milliseconds: int
) -> None:
    manifest = parse(edited(("spec.slo.ttft", f"{minutes}m{seconds}s{milliseconds}ms")))
    assert manifest.spec.slo.ttft_s == pytest.approx(minutes * 60 + seconds + milliseconds / 1000)


@given(st.integers(1, 10**9), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_memory_sizes_with_units_are_parsed_to_bytes(number: int, unit: str) -> None:
    manifest = parse(edited(("spec.engine.kvCacheMemory", f"{number}{unit}")))
    power = ["KiB", "MiB", "GiB", "TiB"].index(unit) + 1
    assert manifest.spec.engine.kv_cache_bytes == number * 1024**power


def test_manifest_with_classes_gives_each_its_targets() -> None:
    chat = {"name": "chat", "ttft": "1s", "tpot": "50ms", "models": ["llama", "llama-chat"]}
    batch = {"name": "batch", "ttft": "30s", "tpot": "500ms", "tbt": "2s"}
    batch |= {"attainment": 0.7, "share": 0.25}
    manifest = parse(
        edited(
            ("spec.slo.attainment", 0.95),
            ("spec.slo.classes", [chat, batch]),
            ("spec.slo.allowRequestTargets", True),
            ("spec.api.servedNames", ["llama-chat"]),
        )
    )
    assert manifest.slo == Slo(2.0, 0.1)
    assert manifest.slo_classes == (
        SloClass(name="chat", slo=Slo(1.0, 0.05), attainment=0.95, models=("llama", "llama-chat")),
        SloClass(name="batch", slo=Slo(30.0, 0.5, 2.0), attainment=0.7, share=0.25),
    )
    assert manifest.spec.slo.allow_request_targets
