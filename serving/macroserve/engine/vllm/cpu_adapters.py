"""The worker keeps adapters off the requests without one, to which vLLM adds them on a CPU.

Kernels of vLLM take the index of a request without an adapter, -1, for that of the last slot.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_worker import CPUWorker

from macroserve.engine.vllm.cpu_worker import CpuWorker


class AdapterKernels(PunicaWrapperCPU):
    """The kernels leave the rows of requests without an adapter as they are."""

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
    """The worker is the only one of its engine, and in its process."""


class AdapterWorkers(_WithAdapters, CpuWorker):
    """The workers share an engine, and each has a process of its own."""


def _add(
    add: Callable[..., None], slots: torch.Tensor, y: torch.Tensor, *args: Any, **kwargs: Any
) -> None:
    """Add the adapter in each row's slot to the row; a negative slot is none."""
    rows, without = y.view(-1, y.shape[-1]), slots < 0
    if not without.all():
        kept = rows[without]
        add(y, *args, **kwargs)
        rows[without] = kept
