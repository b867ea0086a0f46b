"""A platform that vLLM takes for the modelled accelerator."""

from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum

from macroserve.engine.rehearsal import BLOCK_TOKENS
from macroserve.rehearsal import rehearsed
from macroserve.sim.hardware.devices import DEVICES

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class RehearsalPlatform(CpuPlatform):
    """A CPU that says it is an accelerator of another maker: vLLM and Macroserve then choose sizes
    and defaults as for a GPU."""

    _enum = PlatformEnum.OOT
    device_name = "rehearsal"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return f"NVIDIA {rehearsed().device.partition('-')[0]} (rehearsal)"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return int(DEVICES[rehearsed().device].memory_bytes)

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Choose the executor, and no compilation. Scheduling ahead stays as vLLM has chosen it."""
        from vllm.config import CompilationMode, CUDAGraphMode

        from macroserve.rehearsal.executor import RehearsalExecutor

        parallel, compilation = vllm_config.parallel_config, vllm_config.compilation_config
        parallel.distributed_executor_backend = RehearsalExecutor
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"  # which is never made
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        cache = vllm_config.cache_config
        if not cache.user_specified_block_size:
            cache.block_size = BLOCK_TOKENS

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: "VllmConfig") -> None:
        """Keep the block size: no attention backend has a say."""
