"""An engine of vLLM with Macroserve's scheduler."""

import asyncio
import time
from multiprocessing.process import BaseProcess
from typing import Any

from starlette.applications import Starlette
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.utils import CoreEngineProcManager

from macroserve.core.cache_decision import CacheDecision
from macroserve.core.status import Pool
from macroserve.engine.engine import EngineShape, Leave
from macroserve.engine.exits import ended
from macroserve.engine.ordering import ordered_strategy
from macroserve.engine.prefix_caching import decide_prefix_caching
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tag import RequestTag
from macroserve.engine.tokens import Stopped, TokenReader
from macroserve.engine.vllm.api import tokens_app
from macroserve.engine.vllm.caches import with_caches
from macroserve.engine.vllm.choices import ServingChoices
from macroserve.engine.vllm.grammar import CheckedInputProcessor
from macroserve.engine.vllm.greedy import greedy
from macroserve.engine.vllm.options import check_host_cache, check_parallel, engine_args
from macroserve.engine.vllm.quantization import naming_quantization
from macroserve.engine.vllm.scheduler import COMMAND
from macroserve.engine.vllm.stderr_tail import StderrTail
from macroserve.engine.vllm.stopped import end_stopped

# (prompts, prompt tokens, output tokens): enough shapes for the first latency fit.
WARM_UP = ((1, 16, 4), (1, 512, 2), (4, 128, 4), (8, 32, 8), (1, 1024, 2))


def largest_batch(max_batch_tokens: int, max_model_len: int) -> tuple[int, int, int]:
    """Return the warm-up round that fills a batch, so that its kernels are compiled and its memory
    is allocated at the start."""
    output = 2
    length = min(max_batch_tokens, max_model_len - output)
    return max_batch_tokens // length, length, output


class VllmEngine:
    def __init__(self, settings: EngineSettings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._llm: AsyncLLM | None = None
        self._hybrid: CacheDecision | None = None
        self._load_s = 0.0
        self._warm_up_s = 0.0
        self._num_probes = 0
        self._serving: ServingChoices | None = None

    @property
    def llm(self) -> AsyncLLM:
        assert self._llm is not None, "the engine is not started"
        return self._llm

    async def start(self, status_path: str | None = None) -> Starlette:
        args = engine_args(self._settings, self._pool, status_path)
        check_parallel(args)
        check_host_cache(args)
        ordered_strategy(self._settings.strategy, self._settings.ordering)
        with naming_quantization(self._settings):
            args, self._hybrid = with_caches(args, self._settings)
            began_s = time.monotonic()
            self._llm = _started(args)
        self._load_s = time.monotonic() - began_s
        # Ingresses have checked the constraints, so none is compiled in this process's loop.
        self._llm.input_processor = CheckedInputProcessor(self._llm.vllm_config, self._llm.renderer)
        if self._hybrid.on:
            by_rank = await self._llm.collective_rpc("measure_rho")
            await self.command("set_rebuild", max(by_rank))
        began_s = time.monotonic()
        await self._warm_up()
        self._warm_up_s = time.monotonic() - began_s
        app = await tokens_app(self._llm, self._settings)
        self._serving = ServingChoices.of(app.state)
        # vLLM reads an environment variable for each token.
        envs.enable_envs_cache()
        return app

    async def _warm_up(self) -> None:
        """Generate tokens, to check the engine and to fit the latency model."""
        longest = self._settings.max_model_len
        limits = self.llm.vllm_config.scheduler_config
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

    async def _probe(self, request_id: str, prompt_token_ids: list[int], max_tokens: int) -> None:
        tag = RequestTag(route_id=request_id, age_s=0.0, slo=self._settings.slo, probe=True)
        params = greedy(max_tokens, extra_args=tag.to_args())
        prompt = TokensPrompt(prompt_token_ids=prompt_token_ids)
        async for _ in self.llm.generate(prompt, params, request_id):
            pass

    @property
    def shape(self) -> EngineShape:
        cache = self.llm.vllm_config.cache_config
        limits = self.llm.vllm_config.scheduler_config
        assert cache.num_gpu_blocks is not None and self._hybrid is not None
        prefix_caching = decide_prefix_caching(
            self._settings.prefix_caching, self._hybrid.on, cache.enable_prefix_caching
        )
        return EngineShape(
            cache.num_gpu_blocks - 1,
            cache.block_size,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            str(self._hybrid),
            str(prefix_caching),
            self._load_s,
            self._warm_up_s,
        )

    @property
    def fault(self) -> str | None:
        if not self.llm.errored:
            return None
        codes = [process.exitcode for process in _engine_processes(self.llm)]
        code = next((code for code in codes if code), None)
        return "its engine has failed" if code is None else f"its engine's process {ended(code)}"

    @property
    def num_unfinished(self) -> int:
        return self.llm.output_processor.get_num_unfinished_requests()

    async def submit(self, body: dict[str, Any], reader: TokenReader) -> Leave:
        assert self._serving is not None, "the engine is not started"
        return await self._serving.submit(body, reader)

    async def end_stopped(self, stopped: Stopped) -> None:
        await end_stopped(self.llm, stopped)

    async def probe(self) -> None:
        self._num_probes += 1
        await self._probe(f"probe-{self._num_probes}", [1], 1)

    async def command(self, verb: str, argument: Any = None) -> Any:
        return await self.llm.engine_core.call_utility_async(COMMAND, verb, argument)

    async def stop(self) -> None:
        envs.disable_envs_cache()
        if self._llm is not None:
            self._llm.shutdown()


def _engine_processes(llm: AsyncLLM) -> list[BaseProcess]:
    manager = llm.engine_core.resources.engine_manager
    return manager.processes if isinstance(manager, CoreEngineProcManager) else []


def _started(args: AsyncEngineArgs) -> AsyncLLM:
    """Start the engine. Raises RuntimeError with the cause if the engine's process ends."""
    stderr = StderrTail()
    try:
        return AsyncLLM.from_engine_args(args)
    except RuntimeError as error:
        stderr.close()
        if "Engine core initialization failed" not in str(error):
            raise
        raise RuntimeError(stderr.cause(error)) from error
    finally:
        stderr.close()
