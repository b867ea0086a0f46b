"""On a CPU, vLLM adds the adapter in its last slot to requests without one: this worker does not.

Its kernels take the index of a request without an adapter, -1, for that of the last slot.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.worker.cpu_worker import CPUWorker


class AdapterKernels(PunicaWrapperCPU):
    """The kernels leave the rows of requests without an adapter as they are."""

    def add_lora_linear(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with _kept(y, self.token_lora_indices):
            super().add_lora_linear(y, *args, **kwargs)

    def add_lora_embedding(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with _kept(y, self.token_lora_indices):
            super().add_lora_embedding(y, *args, **kwargs)

    def add_lora_logits(self, y: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        with _kept(y, self.sampler_indices):
            super().add_lora_logits(y, *args, **kwargs)


class AdapterWorker(CPUWorker):
    def load_model(self, **kwargs: Any) -> None:
        name = f"{__name__}.{AdapterKernels.__name__}"
        CpuPlatform.get_punica_wrapper = staticmethod(lambda: name)  # type: ignore[method-assign]
        super().load_model(**kwargs)


@contextmanager
def _kept(y: torch.Tensor, slots: torch.Tensor) -> Iterator[None]:
    rows, without = y.view(-1, y.shape[-1]), slots < 0
    kept = rows[without]
    yield
    rows[without] = kept
