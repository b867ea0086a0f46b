"""A vLLM engine with our scheduler in this process, whose state tests can read."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.request import Request

from macroserve.api.messages import RequestInfo
from macroserve.core.scheduler.batching import aptserve
from macroserve.core.scheduler.batching.aptserve import KnapsackItems
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.rounds import Rounds
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import Sequence
from macroserve.core.strategies import strategy
from macroserve.core.strategy import Strategy
from macroserve.engine.vllm.hybrid.cache_spec import HybridBlocks
from macroserve_lab.bench import offline_engine as bench
from macroserve_lab.bench.offline_engine import OfflineEngine, instance_args

__all__ = ["InstanceEngine", "OfflineEngine", "chosen_caches", "instance_args", "offline_engine"]


class InstanceEngine(OfflineEngine):
    """An offline engine with our scheduler and the hybrid cache."""

    def __init__(self, llm: LLMEngine) -> None:
        super().__init__(llm)
        self.scheduler = llm.engine_core.engine_core.scheduler
        self._leaving: list[float] = []
        self._watch()

    def introduce(
        self, info: RequestInfo, prompt: list[int], num_tokens: int, **sampling: Any
    ) -> None:
        """Add a request of which an ingress has told ``info``, under the name in it."""
        core = self.llm.engine_core.engine_core
        add = core.add_request

        def introduced(request: Request, wave: int = 0) -> None:
            self.scheduler.introduce(request.request_id, info)  # LLMEngine has extended the name
            add(request, wave)

        with patch.object(core, "add_request", introduced):
            self.add(info.route_id, prompt, num_tokens, **sampling)

    def preempt(self, which: float) -> None:
        """Make one running request give up its cache in the next iteration. `which` is from 0 to
        1."""
        self._leaving.append(which)

    def check_reserved(self) -> None:
        """Assert that vLLM has no block that the policy has not reserved for the request."""
        held_by = self.policy.running.blocks.held_by
        for request_id, blocks in self._manager.req_to_blocks.items():
            assert len(blocks) <= held_by(request_id), request_id

    def clear(self) -> None:
        """Reset the engine to the state before its first request."""
        self.llm.abort_request([*self.scheduler.requests])
        self._leaving.clear()
        self.finish()

    def decide_by(self, chosen: str | Strategy, *, shares_prefixes: bool | None = None) -> None:
        """Change the strategy of an engine without requests, with an empty prefix cache or none;
        None leaves prefix caching unchanged."""
        while len(self.policy.in_flight):
            self.step()  # the last batch may be in flight
        self.llm.reset_prefix_cache()
        if shares_prefixes is not None:
            self.scheduler.kv_cache_manager.enable_caching = shares_prefixes
        chosen = strategy(chosen) if isinstance(chosen, str) else chosen
        config = replace(self.policy.config, strategy=chosen)
        record = self.scheduler._cache_record
        self.scheduler.policy = policy = InstanceScheduler(config, self.policy.latency, record)
        stages = self.scheduler.parallel_config.pipeline_parallel_size
        self.scheduler._batches = Rounds(policy, stages) if stages > 1 else policy
        self._watch()

    def caches(self) -> dict[str, CacheKind]:
        """Return the cache kind of each running request, according to vLLM's page manager."""
        is_hidden, running = self._manager.is_hidden, self.scheduler.running
        return {
            r.request_id: CacheKind.HIDDEN if is_hidden(r.request_id) else CacheKind.KV
            for r in running
        }

    def check_pages(self) -> None:
        """Assert that no page is lost, and none used by two requests."""
        pool = self.scheduler.kv_cache_manager.block_pool
        owned = self._manager.req_to_blocks
        pages = [block.block_id for blocks in owned.values() for block in blocks]
        assert len(set(pages)) == len(pages), "a page has two owners"
        assert pool.null_block.block_id not in pages
        assert self._manager._hidden <= set(owned), "the cache of one that has left is known"
        # One page is vLLM's null block.
        assert pool.get_num_free_blocks() + len(pages) == pool.num_gpu_blocks - 1, "pages are lost"
        worker = self.llm.engine_core.engine_core.model_executor.driver_worker.worker
        batch = worker.model_runner.input_batch
        table = batch.block_table[0].get_numpy_array()
        for request in self.scheduler.running:
            row, blocks = batch.req_id_to_index.get(request.request_id), owned[request.request_id]
            if row is not None:
                assert table[row, : len(blocks)].tolist() == [b.block_id for b in blocks]

    def _watch(self) -> None:
        self._make_room = self._running.make_room
        self._running.make_room = self._preempting

    def _preempting(self, chosen: list[Sequence] | None = None) -> list[Sequence]:
        preempted = self._make_room(chosen)
        while self._leaving:
            which = self._leaving.pop()
            if candidates := list(self._running._preemptible()):
                preempted.append(self._running._preempt(candidates[int(which * len(candidates))]))
        return preempted

    @property
    def policy(self) -> InstanceScheduler:
        return self.scheduler.policy

    @property
    def _running(self) -> Running:
        return self.policy.running

    @property
    def _manager(self) -> HybridBlocks:
        return self.scheduler.kv_cache_manager.coordinator.single_type_managers[0]


def offline_engine(args: AsyncEngineArgs) -> AbstractContextManager[Any]:
    """Run stock vLLM, or an engine with our scheduler, by its arguments."""
    return bench.offline_engine(args, InstanceEngine if args.scheduler_cls else OfflineEngine)


@contextmanager
def chosen_caches(choose: Callable[[int], CacheKind]) -> Iterator[None]:
    """Replace Apt-Serve's greedy choice: admit every request that fits, in order.

    choose: returns the kind of cache by the position among the waiting requests.
    """

    def chosen(items: KnapsackItems, num_blocks: int, penalty: float) -> dict[int, CacheKind]:
        caches: dict[int, CacheKind] = {}
        for index, (_, whole, half) in enumerate(zip(*items, strict=True)):
            cache = choose(index)
            needed = int(half if cache is CacheKind.HIDDEN else whole)
            if needed <= num_blocks:
                caches[index] = cache
                num_blocks -= needed
        return caches

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aptserve, "choose", chosen)
        yield
