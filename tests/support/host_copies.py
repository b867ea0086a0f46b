"""A worker for vLLM's offload connector on a CPU, where vLLM has none.

Only the copies are replaced: vLLM decides which blocks are stored, found, loaded and dropped.
"""

from dataclasses import replace

import torch
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

LOAD_STEPS = 3
"""Duration of a load in steps."""


def with_host_copies(args: AsyncEngineArgs) -> AsyncEngineArgs:
    """Return the arguments of an engine whose connector copies on a CPU."""
    assert args.kv_offloading_size
    extra = {"spec_name": HostCopySpec.__name__, "spec_module_path": __name__}
    return replace(args, kv_transfer_config=KVTransferConfig(kv_connector_extra_config=extra))


class HostCopySpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        assert self.blocks_per_chunk == 1
        return HostCopies(kv_caches, self.num_chunks)


class HostCopies(OffloadingWorker):
    """A worker that copies a store when it begins and a load when it ends, until which the load's
    blocks keep their previous content."""

    def __init__(self, kv_caches: CanonicalKVCaches, num_blocks: int) -> None:
        self._pool = [cache.tensor for cache in kv_caches.tensors]
        self._host = [torch.zeros((num_blocks, t.shape[1]), dtype=t.dtype) for t in self._pool]
        self._stored: list[int] = []
        self._loads: list[tuple[int, LoadStoreSpec, GPULoadStoreSpec]] = []
        self._steps: list[int] = []
        """Remaining steps of each load."""

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        _copy(self._pool, src_spec, self._host, dst_spec)
        self._stored.append(job_id)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self._loads.append((job_id, src_spec, dst_spec))
        self._steps.append(LOAD_STEPS)
        return True

    def get_finished(self) -> list[TransferResult]:
        ended, self._stored = self._stored, []
        self._steps = [left - 1 for left in self._steps]
        while self._steps and not self._steps[0]:
            job_id, src_spec, dst_spec = self._loads.pop(0)
            _copy(self._host, src_spec, self._pool, dst_spec)
            ended.append(job_id)
            del self._steps[0]
        return [TransferResult(job_id, True) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        assert job_ids.isdisjoint(job_id for job_id, _, _ in self._loads), (
            "a load is not waited for"
        )


def _copy(
    sources: list[torch.Tensor], src: LoadStoreSpec, targets: list[torch.Tensor], dst: LoadStoreSpec
) -> None:
    assert isinstance(src, BlockIDsLoadStoreSpec) and isinstance(dst, BlockIDsLoadStoreSpec)
    read, written = (torch.from_numpy(spec.block_ids).long() for spec in (src, dst))
    for source, target in zip(sources, targets, strict=True):
        target[written] = source[read]
