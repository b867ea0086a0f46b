"""An engine without a model, whose executor waits as long as a device would take.

Only the forward pass is emulated (``emulated_executor``); scheduler and statuses are those of a
real instance. Step times come from a fixed model of a device, which the scheduler's predictor has
to learn.
"""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from macroserve.api.messages import RequestInfo
from macroserve.core.batch import BatchKind
from macroserve.core.hybrid_cache import (
    SHARED,
    HybridCacheFit,
    decide_hybrid_cache,
    keeping_hidden,
)
from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler, Refusal
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.core.strategies import strategy
from macroserve.engine.commands import apply_command
from macroserve.engine.emulated_executor import EmulatedExecutor
from macroserve.engine.emulated_prefixes import PrefixCache
from macroserve.engine.engine import EngineShape, Leave
from macroserve.engine.ordering import ordered_strategy
from macroserve.engine.prefix_caching import decide_prefix_caching
from macroserve.engine.settings import EngineSettings
from macroserve.engine.status import Heart, StatusSender
from macroserve.engine.tokens import (
    HAND_BACK_PREFIX,
    Choice,
    RefusedError,
    TokenReader,
    TokenRequest,
)

# Llama-2-7B in fp16 on an A100, by its datasheet at common efficiencies.
EMULATED_MODEL = ModelShape(
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    intermediate_size=11008,
    vocab_size=32000,
    dtype_bytes=2,
    tensor_parallel=1,
)
EMULATED_DEVICE = DeviceShape(flops_per_s=0.5 * 312e12, bytes_per_s=0.8 * 2.0e12)
HIDDEN_PER_KV = EMULATED_MODEL.kv_size // EMULATED_MODEL.hidden_size
"""Hidden states in the memory of one token's keys and values."""
PREDICTED_DEVICE = DeviceShape(flops_per_s=312e12, bytes_per_s=2.0e12)


class EmulatedEngine:
    def __init__(
        self,
        settings: EngineSettings,
        pool: Pool,
        truth: LatencyModel | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        truth = truth or LatencyModel(EMULATED_MODEL, EMULATED_DEVICE)
        hybrid = decide_hybrid_cache(
            strategy(settings.strategy),
            settings.hybrid_cache,
            lambda: (
                SHARED
                if settings.prefix_caching == "On"
                else HybridCacheFit(1 / HIDDEN_PER_KV, direct=False)
            ),
        )
        shares = settings.prefix_caching != "Off" and not hybrid.on
        prefixes = decide_prefix_caching(settings.prefix_caching, hybrid.on, shares)
        sizes = settings.small
        block_bytes = sizes.block_size * EMULATED_MODEL.kv_bytes_per_token
        self._shape = EngineShape(
            max(1, settings.small_cache_bytes // block_bytes),
            sizes.block_size,
            sizes.max_num_seqs,
            sizes.max_batch_tokens,
            str(hybrid),
            str(prefixes),
        )
        pool_tokens = self._shape.num_blocks * sizes.block_size
        if pool_tokens < settings.max_model_len:
            raise ValueError(
                f"the KV cache holds {pool_tokens} tokens of the emulated model, fewer than the "
                f"{settings.max_model_len} of the longest request: enlarge engine.kvCacheMemory"
            )
        cache = PrefixCache(self._shape.num_blocks, sizes.block_size) if prefixes.on else None
        self._executor = EmulatedExecutor(truth, clock, sleep, cache)
        self._policy = InstanceScheduler(
            InstanceConfig(
                strategy=keeping_hidden(
                    ordered_strategy(settings.strategy, settings.ordering), hybrid.on
                ),
                pool=pool,
                slo=settings.slo,
                num_blocks=self._shape.num_blocks,
                block_size=sizes.block_size,
                max_num_seqs=sizes.max_num_seqs,
                max_batch_tokens=sizes.max_batch_tokens,
                max_model_len=settings.max_model_len,
                drop_late=settings.drop_late,
                max_late_wait_s=settings.max_late_wait_s,
                tuning=settings.tuning,
                hidden_states_per_block=HIDDEN_PER_KV * sizes.block_size if hybrid.on else None,
            ),
            LatencyModel(EMULATED_MODEL, PREDICTED_DEVICE),
            cache.record if cache else None,
        )
        # Until the cell reports that another instance accepts the requests.
        self._policy.let_offload(False)
        self._work = asyncio.Event()
        self._sender = StatusSender(None)
        self._heart: Heart | None = None
        self._num_probes = 0
        self._loop: asyncio.Task[None] | None = None

    async def start(self, status_path: str | None = None) -> None:
        self._sender = StatusSender(status_path)
        self._heart = heart = Heart(self._sender, lambda: self.num_unfinished)
        self._loop = asyncio.create_task(self._run(heart))
        self._push_status()

    @property
    def shape(self) -> EngineShape:
        return self._shape

    @property
    def fault(self) -> str | None:
        runs = self._loop is not None and not self._loop.done()
        return None if runs else "its engine has ended"

    @property
    def num_unfinished(self) -> int:
        return len(self._executor.streams)

    async def submit(self, request: TokenRequest, reader: TokenReader) -> Leave:
        now, name = self._clock(), request.info.route_id
        if name in self._executor.streams:
            raise RefusedError(HTTPStatus.BAD_REQUEST, Refusal.DUPLICATE)
        try:
            self._executor.add(request, reader)
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error
        sizes = (request.num_prompt_tokens, request.max_new_tokens)
        known = request.info.to_request(name, *sizes, now)
        if refusal := self._policy.add_request(known, now):
            self._executor.remove(name)
            raise RefusedError(HTTPStatus.BAD_REQUEST, refusal)
        self._work.set()
        self._push_status()
        return lambda num_tokens: self._remove(name)

    async def probe(self) -> None:
        self._num_probes += 1
        name = f"probe-{self._num_probes}"
        info = RequestInfo(route_id=name, age_s=0.0, slo=self._settings.slo, probe=True)
        reader = _ProbeReader()
        leave = await self.submit(TokenRequest.greedy(info, [1], 1), reader)
        try:
            await reader.generated.wait()
        finally:
            leave(None)

    async def command(self, verb: str, argument: Any = None) -> Any:
        result = apply_command(self._policy, verb, argument)
        self._work.set()
        self._push_status()
        return result

    async def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
        if self._heart is not None:
            self._heart.stop()

    def _end(self, request_id: str, finish_reason: str, stop_reason: str | None = None) -> None:
        if stream := self._executor.streams.get(request_id):
            stream.end(finish_reason, stop_reason)
            self._remove(request_id)

    def _remove(self, request_id: str) -> None:
        """Remove a stream, if it exists; its blocks are free before the next batch."""
        if request_id in self._executor.streams:
            self._executor.remove(request_id)
            self._policy.finish(request_id)
            self._push_status()

    # -- the loop, as in a real engine

    async def _run(self, heart: Heart) -> None:
        while True:
            batch = self._policy.schedule(self._clock())
            for item in batch.handed_back:
                self._end(item.request_id, "abort", HAND_BACK_PREFIX + item.reason)
            if batch.kind is BatchKind.IDLE:
                self._push_status()
                await self._work.wait()
                self._work.clear()
                continue
            heart.begin(batch.predicted_s)
            result = await self._executor.run(batch)
            self._policy.update(batch, result, self._clock())
            for request_id in result.finished:
                self._executor.remove(request_id)
            heart.end()
            self._push_status()

    def _push_status(self) -> None:
        has_news = self._policy.has_news
        self._sender.send(self._policy.status(self._clock()), has_news=has_news)


class _ProbeReader:
    def __init__(self) -> None:
        self.generated = asyncio.Event()

    def put(self, choice: Choice) -> None:
        self.generated.set()

    def fail(self, message: str) -> None:
        raise AssertionError(f"nothing fails here: {message}")
