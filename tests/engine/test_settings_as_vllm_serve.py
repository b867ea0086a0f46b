"""An engine's resolved settings are those of ``vllm serve`` for the same arguments, but for stated
ones."""

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

import pytest

from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.config import VllmConfig  # noqa: E402
from vllm.engine import arg_utils  # noqa: E402
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.platforms.interface import PlatformEnum  # noqa: E402
from vllm.usage.usage_lib import UsageContext  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402

from macroserve.engine.vllm.caches import with_caches  # noqa: E402
from macroserve.engine.vllm.options import engine_args  # noqa: E402

DEVICES = {"H100": ("NVIDIA H100 80GB HBM3", 80), "L20": ("NVIDIA L20", 48)}
"""Name and memory in GiB, by which vLLM chooses the limits of a batch."""

OURS = {
    "instance_id": "a random number",
    "scheduler_config.scheduler_cls": "the instance scheduler",
    "additional_config": "options of the instance scheduler",
    "model_config.max_logprobs": "the ingress, which asks for one more, checks a request's number",
    "model_config.multimodal_config.mm_processor_cache_gb": "ingresses process images",
}
"""Settings, and groups of settings, that differ on every device, and why."""

ON_CPU = {
    "cache_config.block_size": "blocks that suit several engines on a machine",
    "cache_config.user_specified_block_size": "the same",
    "cache_config.kv_cache_memory_bytes": "memory for several engines on a machine",
    "scheduler_config.max_num_seqs": "the same",
    "scheduler_config.max_num_batched_tokens": "the same",
    "model_config.enforce_eager": "compiling takes a minute",
    "compilation_config": "the same",
    "kernel_config.enable_jit_warmup": "the same",
}
"""Settings that differ on a CPU in addition."""


@pytest.fixture(params=["CPU", *DEVICES])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device that vLLM finds on this machine; it asks GPUs for nothing but name and memory."""
    if request.param in DEVICES:
        name, gib = DEVICES[request.param]
        platform = type(current_platform)
        monkeypatch.setattr(platform, "_enum", PlatformEnum.OOT)
        monkeypatch.setattr(platform, "get_device_name", lambda *_: name)
        monkeypatch.setattr(platform, "get_device_total_memory", lambda *_: gib << 30)
        monkeypatch.setattr(platform, "check_and_update_config", lambda *_: None)
    arg_utils._compute_kwargs.cache_clear()  # defaults that depend on the device
    yield request.param


def served(*options: str) -> VllmConfig:
    """Return the configuration of ``vllm serve``."""
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([*options])
    return arg_utils.AsyncEngineArgs.from_cli_args(args).create_engine_config(
        UsageContext.OPENAI_API_SERVER
    )


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Return all settings of a configuration by their paths."""
    if dataclasses.is_dataclass(config):
        fields = (
            (field.name, getattr(config, field.name, None)) for field in dataclasses.fields(config)
        )
        return {
            path: value
            for name, each in fields
            for path, value in flat(each, f"{prefix}.{name}").items()
        }
    plain = (
        config if isinstance(config, (bool, int, float, str, type(None), Enum)) else repr(config)
    )
    return {prefix.removeprefix("."): plain}


def test_resolved_settings_differ_from_vllm_serves_for_stated_reasons_alone(
    device: str, settings: EngineSettings
) -> None:
    left_open = replace(
        settings,
        strategy="unified",
        block_size=None,
        kv_cache_bytes=None,
        max_num_seqs=None,
        max_batch_tokens=None,
    )
    args, _ = with_caches(engine_args(left_open, Pool.LP, None), left_open)
    ours = flat(args.create_engine_config())
    theirs = flat(
        served(
            *("--model", left_open.model, "--served-model-name", left_open.served_name),
            *("--max-model-len", str(left_open.max_model_len), "--dtype", left_open.dtype),
        )
    )
    stated = OURS if device != "CPU" else OURS | ON_CPU
    differing = {
        path: (ours.get(path), theirs.get(path))
        for path in ours.keys() | theirs.keys()
        if ours.get(path) != theirs.get(path)
        and not any(path == each or path.startswith(f"{each}.") for each in stated)
    }
    assert differing == {}
