"""Several workers on a CPU are processes of their own, beside the engine's."""

import os
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import CompilationTimes

from macroserve.engine.exits import die_with_parent
from macroserve.engine.vllm import ENGINE_NICENESS


class CpuWorker(CPUWorker):
    """The worker yields to servers, ends with its engine, and shares the cores with the others."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        die_with_parent()
        os.nice(ENGINE_NICENESS)
        # More threads than cores wait for each other, a hundred times as long as they compute.
        num_workers = vllm_config.parallel_config.world_size
        torch.set_num_threads(max(1, torch.get_num_threads() // num_workers))
        super().__init__(vllm_config, *args, **kwargs)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        runner: CPUModelRunner = self.model_runner
        # vLLM makes these in a warm-up, which an eager worker skips.
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            model: Any = runner.model
            runner.intermediate_tensors = model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens,
                dtype=runner.model_config.dtype,
                device=runner.device,
            )
        return super().compile_or_warm_up_model()
