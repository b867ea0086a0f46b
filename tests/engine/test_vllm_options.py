"""A frontend's settings become vLLM's arguments."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.config import VllmConfig  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from macroserve.engine.vllm import options  # noqa: E402
from macroserve.engine.vllm.caches import with_caches  # noqa: E402
from macroserve.engine.vllm.options import (  # noqa: E402
    check_host_cache,
    check_parallel,
    engine_args,
    frontend_config,
    with_hybrid_cache,
)
from macroserve_lab.bench.kind_models import build  # noqa: E402

pytestmark = pytest.mark.integration


def test_frontend_config_inspects_the_model_without_a_process(
    settings: EngineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> Never:
        raise AssertionError(f"a process was started: {args}")

    # Where vLLM remembers what it has learnt of models, for other processes and for this one.
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    registry._try_inspect_model_cls.cache_clear()
    monkeypatch.setattr(subprocess, "run", refuse)
    config = frontend_config(settings)
    assert config.model_config.max_model_len == settings.max_model_len
    assert (tmp_path / "modelinfos").is_dir(), "it was known already"


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (
            {"structured_outputs_config": {"enable_in_reasoning": True}},
            lambda config: config.structured_outputs_config.enable_in_reasoning,
        ),
        (
            {"attention_config": {"use_trtllm_attention": False}},
            lambda config: config.attention_config.use_trtllm_attention is False,
        ),
        (
            {"override_generation_config": {"temperature": 0.5}},
            lambda config: config.model_config.override_generation_config["temperature"] == 0.5,
        ),
    ],
)
def test_engine_args_that_are_mappings_become_vllm_classes(
    settings: EngineSettings, args: dict[str, Any], found: Callable[[VllmConfig], bool]
) -> None:
    config = frontend_config(replace(settings, args=args, api={"reasoning_parser": "granite"}))
    assert found(config)
    assert config.structured_outputs_config.reasoning_parser == "granite"


def test_expert_parallelism_reaches_the_engine_of_a_model_with_experts(
    settings: EngineSettings, tmp_path: Path
) -> None:
    experts = replace(settings, model=str(build(tmp_path, "moe")))
    asked = replace(experts, args={**experts.args, "enable_expert_parallel": True})
    assert (
        not engine_args(experts, Pool.LP, None)
        .create_engine_config()
        .parallel_config.enable_expert_parallel
    )
    assert (
        engine_args(asked, Pool.LP, None)
        .create_engine_config()
        .parallel_config.enable_expert_parallel
    )


def test_engine_args_mapping_with_an_unknown_name_is_refused(settings: EngineSettings) -> None:
    with pytest.raises(ValueError, match="enable_in_thoughts"):
        frontend_config(
            replace(settings, args={"structured_outputs_config": {"enable_in_thoughts": True}})
        )


def test_hybrid_cache_schedules_no_step_ahead(settings: EngineSettings) -> None:
    args = engine_args(settings, Pool.LP, None)
    assert args.async_scheduling is None, "vLLM decides"
    assert with_hybrid_cache(args).async_scheduling is False


def test_hybrid_cache_with_asynchronous_scheduling_is_refused(settings: EngineSettings) -> None:
    asked = replace(settings, args={"async_scheduling": True})
    with pytest.raises(ValueError, match="asyncScheduling excludes"):
        with_hybrid_cache(engine_args(asked, Pool.LP, None))


def test_sizes_left_open_are_vllms_choice_on_a_gpu_and_small_on_a_cpu(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_open = replace(
        settings, block_size=None, kv_cache_bytes=None, max_num_seqs=None, max_batch_tokens=None
    )
    args = engine_args(left_open, Pool.LP, None)
    assert (args.block_size, args.max_num_seqs, args.max_num_batched_tokens) == (32, 64, 2048)
    assert args.kv_cache_memory_bytes == 256 << 20
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    args = engine_args(left_open, Pool.LP, None)
    assert (args.block_size, args.max_num_seqs, args.max_num_batched_tokens) == (None, None, None)
    assert args.kv_cache_memory_bytes is None


@pytest.mark.parametrize(
    ("args", "backend"),
    [
        ({}, None),
        ({"numa_bind": True}, "mp"),
        ({"numa_bind": True, "distributed_executor_backend": "uni"}, "uni"),
    ],
)
def test_engine_that_is_bound_to_memory_computes_in_a_process_that_vllm_starts(
    settings: EngineSettings, args: dict[str, Any], backend: str | None
) -> None:
    found = engine_args(replace(settings, args=args), Pool.LP, None)
    assert found.distributed_executor_backend == backend


def test_shared_recurrent_states_on_a_cpu_are_refused(
    settings: EngineSettings, tmp_path: Path
) -> None:
    recurrent = replace(settings, model=str(build(tmp_path, "recurrent")))
    for prefix_caching in ("Auto", "Off"):
        left = replace(recurrent, prefix_caching=prefix_caching)
        args, _ = with_caches(engine_args(left, Pool.LP, None), left)
        assert not args.create_engine_config().cache_config.enable_prefix_caching
    asked = replace(recurrent, prefix_caching="On")
    with pytest.raises(ValueError, match=r"must be Auto or Off for a model with recurrent layers"):
        with_caches(engine_args(asked, Pool.LP, None), asked)


def test_cache_in_the_memory_of_the_host_shares_prefixes_and_needs_a_gpu(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(settings, host_cache_bytes=3 << 29)
    args, hybrid = with_caches(engine_args(asked, Pool.LP, None), asked)
    assert args.kv_offloading_size == 1.5 and args.enable_prefix_caching and not hybrid.on
    with pytest.raises(ValueError, match=r"hostCacheMemory must be left out on a machine without"):
        check_host_cache(args)
    check_host_cache(replace(args, kv_offloading_size=None))
    monkeypatch.setattr(type(current_platform), "is_cuda_alike", lambda self: True)
    check_host_cache(args)


def test_pipeline_with_more_stages_than_layers_is_refused(settings: EngineSettings) -> None:
    fitting, longer = (
        engine_args(replace(settings, pipeline_parallel=stages), Pool.LP, None)
        for stages in (2, 99)
    )
    check_parallel(fitting)
    with pytest.raises(ValueError, match=r"pipelineParallel is 99, must be at most .* layers"):
        check_parallel(longer)


def test_more_workers_than_devices_are_refused(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = replace(settings, tensor_parallel=2, pipeline_parallel=2)
    args = engine_args(wide, Pool.LP, None)
    monkeypatch.setattr(options, "current_platform", SimpleNamespace(is_cuda_alike=lambda: True))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    with pytest.raises(ValueError, match=r"pipelineParallel is 4, must be at most .* is 3"):
        check_parallel(args)


@pytest.mark.parametrize("config", [{"method": "ngram"}, {"model": "[ngram]"}])
def test_drafts_by_ngrams_without_numba_are_refused(
    settings: EngineSettings, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    speculating = replace(settings, args={"speculative_config": config})
    monkeypatch.setattr(options, "find_spec", lambda name: name)
    engine_args(speculating, Pool.LP, None)
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="method ngram needs the Python package numba"):
        engine_args(speculating, Pool.LP, None)
