"""Workers on a CPU: several in separate processes, and with adapters.

vLLM's kernels take the index of a request without an adapter, -1, for the last slot.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import CompilationTimes

from macroserve.engine.exits import die_with_parent
from macroserve.engine.vllm import ENGINE_NICENESS


class CpuWorker(CPUWorker):
    """A worker that yields to servers, ends with its engine, and shares the cores with others."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        die_with_parent()
        os.nice(ENGINE_NICENESS)
        # With more threads than cores, waiting takes a hundred times as long as computing.
        num_workers = vllm_config.parallel_config.world_size
        torch.set_num_threads(max(1, torch.get_num_threads() // num_workers))
        super().__init__(vllm_config, *args, **kwargs)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        runner: CPUModelRunner = self.model_runner
        # vLLM makes these tensors in a warm-up that an eager worker skips.
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            model: Any = runner.model
            runner.intermediate_tensors = model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype,
                device=runner.device,
            )
        return super().compile_or_warm_up_model()


class AdapterKernels(PunicaWrapperCPU):
    """Kernels that skip the rows of requests without an adapter."""

    def add_lora_linear(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        _add(super().add_lora_linear, self.token_lora_indices, y, *args, **kwargs)

    def add_lora_embedding(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        _add(super().add_lora_embedding, self.token_lora_indices, y, *args, **kwargs)

    def add_lora_logits(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        _add(super().add_lora_logits, self.sampler_indices, y, *args, **kwargs)


class _WithAdapters(CPUWorker):
    def load_model(self, **kwargs: Any) -> None:
        name = f"{__name__}.{AdapterKernels.__name__}"
        CpuPlatform.get_punica_wrapper = staticmethod(lambda: name)  # type: ignore[method-assign]
        super().load_model(**kwargs)


class AdapterWorker(_WithAdapters):
    """The only worker of its engine, in the engine's process."""


class AdapterWorkers(_WithAdapters, CpuWorker):
    """One of several workers of an engine, each in a separate process."""


def _add(
    add: Callable[..., None], slots: torch.Tensor, y: torch.Tensor, *args: Any, **kwargs: Any
) -> None:
    """Apply the adapter in each row's slot to the row; a negative slot means none."""
    rows, without = y.view(-1, y.shape[-1]), slots < 0
    if not without.all():
        kept = rows[without]
        add(y, *args, **kwargs)
        rows[without] = kept
