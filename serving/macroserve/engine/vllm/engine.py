"""An engine of vLLM with Macroserve's scheduler."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from vllm import envs
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.transformers_utils.config import maybe_register_config_serialize_by_value
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from macroserve.api.logs import get_logger
from macroserve.api.messages import RequestInfo
from macroserve.core.cache_decision import CacheDecision
from macroserve.core.status import Pool
from macroserve.engine.engine import EngineShape, Leave
from macroserve.engine.exits import name_thread
from macroserve.engine.ordering import ordered_strategy
from macroserve.engine.prefix_caching import decide_prefix_caching
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, RefusedError, TokenReader, TokenRequest, unpack
from macroserve.engine.vllm.caches import with_caches
from macroserve.engine.vllm.core_loop import CoreLoop
from macroserve.engine.vllm.features import check_features, decode_features
from macroserve.engine.vllm.grammar import backend_of
from macroserve.engine.vllm.options import check_host_cache, check_parallel, engine_args
from macroserve.engine.vllm.outputs import RunningRequests
from macroserve.engine.vllm.quantization import naming_quantization
from macroserve.engine.vllm.scheduler import command
from macroserve.engine.vllm.stderr_tail import naming_worker_errors

log = get_logger(__name__)

# (prompts, prompt tokens, output tokens): enough shapes for the first latency fit.
WARM_UP = ((1, 16, 4), (1, 512, 2), (4, 128, 4), (8, 32, 8), (1, 1024, 2))


def largest_batch(max_batch_tokens: int, max_model_len: int) -> tuple[int, int, int]:
    """Return the warm-up round that fills a batch, so that its kernels are compiled and its memory
    is allocated at the start."""
    output = 2
    length = min(max_batch_tokens, max_model_len - output)
    return max_batch_tokens // length, length, output


class VllmEngine:
    """An engine in this process.

    thread: an executor of one thread, for the device; vLLM uses the process's main thread.
    """

    def __init__(
        self, settings: EngineSettings, pool: Pool, thread: Executor | None = None
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._thread = thread or ThreadPoolExecutor(1, "engine")
        self._inputs = ThreadPoolExecutor(1, initializer=partial(name_thread, "inputs"))
        self._config: VllmConfig | None = None
        self._core: CoreLoop | None = None
        self._running: RunningRequests | None = None
        self._stepping: asyncio.Future[None] | None = None
        self._hybrid: CacheDecision | None = None
        self._adapters: dict[str, LoRARequest] = {}
        self._load_s = 0.0
        self._warm_up_s = 0.0
        self._num_probes = 0

    async def start(self, status_path: str | None = None) -> None:
        """Start the engine. Raises RuntimeError with the cause if a worker's process ends."""
        loop = asyncio.get_running_loop()

        def take(outputs: EngineCoreOutputs) -> None:
            loop.call_soon_threadsafe(self.running.take, outputs)

        began_s = time.monotonic()
        core = await loop.run_in_executor(self._thread, self._build, status_path, take)
        self._load_s = time.monotonic() - began_s
        self._running = RunningRequests(self.config)
        self._core, self._stepping = core, loop.run_in_executor(self._thread, core.run)
        self._stepping.add_done_callback(self._end)
        for number, (name, path) in enumerate(self._settings.adapters.items(), 1):
            self._adapters[name] = adapter = LoRARequest(name, number, path)
            await self.call(partial(EngineCore.add_lora, lora_request=adapter))
        if self.hybrid.on:
            by_rank = await self.call(lambda core: core.collective_rpc("measure_rho"))
            await self.command("set_rebuild", max(by_rank))
        began_s = time.monotonic()
        await self._warm_up()
        self._warm_up_s = time.monotonic() - began_s

    def _build(
        self, status_path: str | None, take: Callable[[EngineCoreOutputs], None]
    ) -> CoreLoop:
        args = engine_args(self._settings, self._pool, status_path)
        check_parallel(args)
        check_host_cache(args)
        ordered_strategy(self._settings.strategy, self._settings.ordering)
        with naming_quantization(self._settings):
            args, self._hybrid = with_caches(args, self._settings)
            self._config = args.create_engine_config()
            # Workers' processes get classes that came with a checkpoint.
            maybe_register_config_serialize_by_value()
            with naming_worker_errors():
                return CoreLoop(self._config, take)

    def _end(self, stepping: asyncio.Future[None]) -> None:
        if not stepping.cancelled() and (error := stepping.exception()):
            log.error("engine failed", reason=repr(error), exc_info=error)
            self.running.fail("the engine has failed")

    async def _warm_up(self) -> None:
        """Generate tokens, to check the engine and to fit the latency model."""
        longest = self._settings.max_model_len
        limits = self.config.scheduler_config
        rounds = [*WARM_UP]
        if not current_platform.is_cpu():  # which would take a minute
            rounds.append(largest_batch(limits.max_num_batched_tokens, longest))
        for round_, (count, num_tokens, output) in enumerate(rounds):
            length = max(1, min(num_tokens, longest - output))
            prompts = [
                # Each begins with a different token, so that no prefix is cached.
                [1 + len(rounds) * number + round_] * length
                for number in range(count)
            ]
            await asyncio.gather(
                *(
                    self._probe(f"warm-up-{round_}-{number}", prompt, output)
                    for number, prompt in enumerate(prompts)
                )
            )

    async def _probe(self, name: str, prompt: list[int], max_new_tokens: int) -> None:
        info = RequestInfo(route_id=name, age_s=0.0, slo=self._settings.slo, probe=True)
        reader = _ProbeReader()
        leave = await self.submit(TokenRequest.greedy(info, prompt, max_new_tokens), reader)
        try:
            await reader.ended
        finally:
            leave(None)

    @property
    def config(self) -> VllmConfig:
        assert self._config is not None, "the engine is not started"
        return self._config

    @property
    def core(self) -> CoreLoop:
        assert self._core is not None, "the engine is not started"
        return self._core

    @property
    def running(self) -> RunningRequests:
        assert self._running is not None, "the engine is not started"
        return self._running

    @property
    def hybrid(self) -> CacheDecision:
        assert self._hybrid is not None, "the engine is not started"
        return self._hybrid

    @property
    def shape(self) -> EngineShape:
        cache, limits = self.config.cache_config, self.config.scheduler_config
        assert cache.num_gpu_blocks is not None
        prefix_caching = decide_prefix_caching(
            self._settings.prefix_caching, self.hybrid.on, cache.enable_prefix_caching
        )
        return EngineShape(
            cache.num_gpu_blocks - 1,
            cache.block_size,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            str(self.hybrid),
            str(prefix_caching),
            self._load_s,
            self._warm_up_s,
        )

    @property
    def fault(self) -> str | None:
        is_running = self._stepping is not None and not self._stepping.done()
        return None if is_running else "its engine has failed"

    @property
    def num_unfinished(self) -> int:
        return len(self.running)

    async def submit(self, request: TokenRequest, reader: TokenReader) -> Leave:
        loop, name = asyncio.get_running_loop(), request.info.route_id
        # A long prompt, or an image, takes milliseconds. vLLM wants one thread for it.
        prepared, added = await loop.run_in_executor(self._inputs, self._prepared, request)
        if fault := self.fault:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, fault)
        if name in self.running:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"request {name} is already running")
        self.running.add(prepared, reader)
        self.core.add(added, request.info)

        def leave(num_tokens: int | None) -> None:
            if self.running.end(name, num_tokens):
                self.core.abort(name)

        return leave

    def _prepared(self, request: TokenRequest) -> tuple[EngineCoreRequest, Request]:
        """Return a request as vLLM's client and its engine core have it. Raises RefusedError if it
        cannot be served: the ingress has checked it, but may have other settings during an
        update."""
        try:
            token_ids, features = unpack(request.token_ids), None
            sampling = {**request.sampling, "max_tokens": request.max_new_tokens}
            params = msgspec.convert(sampling, SamplingParams)
            if request.features:
                features = decode_features(request.features)
                check_features(features, len(token_ids))
            elif max(token_ids) >= (vocab_size := self.config.model_config.get_vocab_size()):
                raise ValueError(f"a token id is outside of the vocabulary of {vocab_size}")
            if len(token_ids) + request.max_new_tokens > (longest := self._settings.max_model_len):
                raise ValueError(f"prompt and response have at most {longest} tokens")
            if params.structured_outputs is not None:
                params.structured_outputs._backend = backend_of(self.config)
            prepared = EngineCoreRequest(
                request_id=request.info.route_id,
                prompt_token_ids=token_ids,
                mm_features=features,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=self._adapter(request.adapter),
                cache_salt=request.cache_salt,
                data_parallel_rank=None,
                external_req_id=request.info.route_id,
                reasoning_ended=request.reasoning_ended,
                reasoning_parser_kwargs=request.reasoning_parser_kwargs,
                session_id=request.session,
            )
            return prepared, self.core.prepared(prepared)
        except (VLLMValidationError, ValueError) as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error

    def _adapter(self, name: str | None) -> LoRARequest | None:
        if name is not None and name not in self._adapters:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no adapter {name}")
        return None if name is None else self._adapters[name]

    async def probe(self) -> None:
        self._num_probes += 1
        await self._probe(f"probe-{self._num_probes}", [1], 1)

    async def call(self, function: Callable[[EngineCore], Any]) -> Any:
        """Call a function of the engine core between two steps."""
        if fault := self.fault:
            raise RuntimeError(fault)
        return await asyncio.wrap_future(self.core.call(function))

    async def command(self, verb: str, argument: Any = None) -> Any:
        return await self.call(partial(command, verb=verb, argument=argument))

    async def stop(self) -> None:
        envs.disable_envs_cache()
        if self._core is not None and self._stepping is not None:
            self._core.stop()
            await asyncio.wait([self._stepping])
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._core.shutdown)
        self._thread.shutdown(wait=False)
        self._inputs.shutdown(wait=False)


class _ProbeReader:
    """The reader of a request of which only the end counts."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, choice: Choice) -> None:
        if choice.finish_reason is not None and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, message: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(message))
