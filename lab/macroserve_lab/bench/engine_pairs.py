"""Compare two engines that serve alternately: ours and stock vLLM's; hybrid cache on and off."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle, islice, product
from pathlib import Path
from random import Random
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np
from safetensors.numpy import save_file
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import PromptType, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from macroserve.api.messages import RequestInfo
from macroserve.bench.real_engine import (
    PATIENCE_S,
    Answer,
    TimedReader,
    learned,
    prompt_tokens,
    serve,
    started,
)
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, TokenRequest
from macroserve.engine.vllm.engine import WARM_UP, VllmEngine
from macroserve.engine.vllm.options import stock_args
from macroserve.workload.arrivals import Arrival
from macroserve_lab.bench.offline_engine import instance_args
from macroserve_lab.bench.quickstart import NEVER_LATE
from macroserve_lab.greedy import greedy

NUM_ROUNDS = 3
"""Rounds of each order in which the engines start."""

Served = TypeVar("Served")


class EnginePair(NamedTuple):
    """Two engines of the same settings in vLLM's processes: one with our scheduler, and one with
    vLLM's.

    Both run and serve alternately, so that a slow minute of the machine affects both. The one that
    started first takes some percent longer for the same steps, so a comparison takes pairs of both
    orders.
    """

    ours: AsyncLLM
    stock: AsyncLLM

    async def rounds(
        self, count: int, serve: Callable[[AsyncLLM, int], Awaitable[Served]]
    ) -> list[tuple[Served, Served]]:
        """Let both serve each round alternately; return our results and those of the other engine.

        serve: called with an engine and the number of the round.
        """
        found: list[tuple[Served, Served]] = []
        for round_ in range(count):
            order = (self.stock, self.ours) if round_ % 2 else (self.ours, self.stock)
            served = {llm: await serve(llm, round_) for llm in order}
            found.append((served[self.ours], served[self.stock]))
        return found


@asynccontextmanager
async def engine_pair(settings: EngineSettings, *, ours_first: bool) -> AsyncIterator[EnginePair]:
    """Start both engines, ours first or second."""
    async with AsyncExitStack() as stack:
        if ours_first:
            ours = await stack.enter_async_context(our_engine(settings))
            stock = await stack.enter_async_context(stock_engine(settings))
        else:
            stock = await stack.enter_async_context(stock_engine(settings))
            ours = await stack.enter_async_context(our_engine(settings))
        yield EnginePair(ours, stock)


def our_engine(settings: EngineSettings) -> AbstractAsyncContextManager[AsyncLLM]:
    """Start an engine with our scheduler, which has its own process and vLLM's client, and warm it
    up."""
    return _engine(instance_args(settings), settings.max_model_len)


def stock_engine(settings: EngineSettings) -> AbstractAsyncContextManager[AsyncLLM]:
    """Start the same engine with vLLM's scheduler, and warm it up."""
    return _engine(stock_args(settings), settings.max_model_len)


@asynccontextmanager
async def _engine(args: AsyncEngineArgs, max_model_len: int) -> AsyncIterator[AsyncLLM]:
    llm, random = AsyncLLM.from_engine_args(args), Random("warm-up")
    try:
        for number, num_tokens, num_new in WARM_UP:
            length = min(num_tokens, max_model_len - num_new)
            prompts = [prompt_tokens(random, length) for _ in range(number)]
            await asyncio.gather(
                *(
                    greedy_tokens(llm, f"warm-up-{length}-{index}", _of(prompt), num_new)
                    for index, prompt in enumerate(prompts)
                )
            )
        yield llm
    finally:
        llm.shutdown()


async def greedy_tokens(
    llm: AsyncLLM,
    request_id: str,
    prompt: PromptType,
    num_tokens: int,
    lora: LoRARequest | None = None,
) -> list[int]:
    """Return the first ``num_tokens`` tokens of greedy decoding."""
    tokens: list[int] = []
    async for output in llm.generate(prompt, greedy(num_tokens), request_id, lora_request=lora):
        tokens = list(output.outputs[0].token_ids)
    return tokens


def _of(token_ids: list[int]) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=token_ids)


# Prompts with common beginnings, both with prefix caches.

SHARES = {"half": 0.5, "nine_tenths": 0.9}
"""Shared part of each prompt, by the name of the load."""
NUM_GROUPS, PROMPTS_PER_GROUP = 4, 12
PROMPT_TOKENS, NEW_TOKENS = 640, 16
NUM_ALONE = 16
"""Prompts of each load that are served one at a time, to check the predicted prefill times."""

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class SharedLoad:
    """Groups of prompts that begin with the same tokens."""

    name: str
    share: float

    def prompts(self, seed: str) -> Prompts:
        """Return the prompts of all groups, shuffled; other seeds have other prefixes."""
        random = Random(f"{self.name} {seed}")
        num_shared = int(self.share * PROMPT_TOKENS)
        prompts: Prompts = []
        for _ in range(NUM_GROUPS):
            shared = prompt_tokens(random, num_shared)
            prompts += [
                [*shared, *prompt_tokens(random, PROMPT_TOKENS - num_shared)]
                for _ in range(PROMPTS_PER_GROUP)
            ]
        random.shuffle(prompts)
        return prompts


async def measure_prefixes(
    settings: EngineSettings, num_rounds: int = NUM_ROUNDS
) -> dict[str, float]:
    """Return the figures of each load.

    engine.prefix.speedup_of_stock: requests per second, ours over stock vLLM's, of all at once, in
        the median round; mean of both orders in which the engines start.
    engine.prefix.prediction_error: median error of the predicted prefill, relative to the prefill
        time as vLLM measures it (from when the engine schedules the request to its first token), of
        prompts that an instance's engine serves alone and that find their beginning.
    """
    settings = replace(settings, slo=NEVER_LATE, hybrid_cache="Off", prefix_caching="On")
    loads = [SharedLoad(name, share) for name, share in SHARES.items()]
    speedups = defaultdict[str, list[float]](list)
    for ours_first in (True, False):
        async with engine_pair(settings, ours_first=ours_first) as pair:
            names = count()
            for load in loads:
                taken_s = await pair.rounds(num_rounds, partial(_serve_load, load, names))
                speedups[load.name].append(median(stock_s / our_s for our_s, stock_s in taken_s))
    async with started(settings) as engine:
        errors = {load.name: await _errors(engine, load) for load in loads}
    return {
        **{f"engine.prefix.speedup_of_stock.{name}": mean(speedups[name]) for name in SHARES},
        **{f"engine.prefix.prediction_error.{name}": median(errors[name]) for name in SHARES},
    }


async def _serve_load(load: SharedLoad, names: count, llm: AsyncLLM, round_: int) -> float:
    """Serve all prompts of a round at once; return the seconds."""
    prompts = load.prompts(str(round_))
    began_s = perf_counter()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            *(greedy_tokens(llm, str(next(names)), _of(prompt), NEW_TOKENS) for prompt in prompts)
        )
    return perf_counter() - began_s


async def _errors(engine: VllmEngine, load: SharedLoad) -> list[float]:
    """Return the relative errors of the predicted prefills of prompts with a cached prefix, once
    the engine has learned the latency of such prompts."""

    def prefill(prompt: list[int], name: object) -> Awaitable[tuple[float, int]]:
        return _prefill(engine, prompt, f"{load.name}-{name}")

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(prefill, load.prompts("learned"), count()))
    errors: list[float] = []
    for number, prompt in enumerate(load.prompts("alone")):
        latency = await learned(engine)
        prefill_s, num_cached = await prefill(prompt, f"alone-{number}")
        if num_cached:
            predicted_s = latency.prefill_s(len(prompt) - num_cached, num_cached)
            errors.append(abs(predicted_s - prefill_s) / prefill_s)
        if len(errors) == NUM_ALONE:
            break
    return errors


async def _prefill(engine: VllmEngine, prompt: list[int], request_id: str) -> tuple[float, int]:
    """Return the seconds of a prompt's prefill, and its cached tokens."""
    info = RequestInfo(route_id=request_id, age_s=0.0, slo=NEVER_LATE)
    reader = _PrefillReader(engine, request_id)
    await engine.submit(TokenRequest.greedy(info, prompt, NEW_TOKENS), reader)
    await reader.ended
    return reader.prefill_s, reader.num_cached


class _PrefillReader(TimedReader):
    """A reader that notes vLLM's statistics of the prefill with the first token."""

    def __init__(self, engine: VllmEngine, request_id: str) -> None:
        super().__init__(perf_counter())
        self.prefill_s, self.num_cached = 0.0, 0
        self._engine, self._request_id = engine, request_id

    def put(self, choice: Choice) -> None:
        if not self.token_ids:
            stats = self._engine.running.request_states[self._request_id].stats
            assert stats is not None, "statistics are always on"
            self.prefill_s = stats.first_token_ts - stats.scheduled_ts
            self.num_cached = choice.num_cached
        super().put(choice)


# Requests that name adapters.

NUM_ADAPTERS, RANK = 4, 8
NUM_PROMPTS, ADAPTER_PROMPT_TOKENS, ADAPTER_NEW_TOKENS = 30, 100, 24
Tokens = list[list[int]]


async def measure_adapters(
    settings: EngineSettings, num_rounds: int = NUM_ROUNDS
) -> dict[str, float]:
    """Return the figures of concurrent requests for the model and its adapters.

    engine.lora.tokens_equal: share of the responses that equal stock vLLM's.
    engine.lora.speedup_of_stock: requests per second, ours over stock vLLM's, in the median round;
        mean of both orders in which the engines start.
    """
    speedups, equal = list[float](), list[bool]()
    with TemporaryDirectory() as folder:
        adapters = dict(_adapters(Path(folder), Path(settings.model)))
        settings = replace(settings, slo=NEVER_LATE, prefix_caching="On", adapters=adapters)
        for ours_first in (True, False):
            async with engine_pair(settings, ours_first=ours_first) as pair:
                rounds = await pair.rounds(num_rounds, partial(_serve_adapters, adapters))
            speedups.append(median(stock_s / our_s for (our_s, _), (stock_s, _) in rounds))
            for (_, tokens), (_, stock_tokens) in rounds:
                equal += [a == b for a, b in zip(tokens, stock_tokens, strict=True)]
    return {
        "engine.lora.tokens_equal": mean(equal),
        "engine.lora.speedup_of_stock": mean(speedups),
    }


def _adapters(folder: Path, model: Path) -> Iterator[tuple[str, str]]:
    """Write adapters of random weights, and yield the name and the folder of each."""
    config = json.loads((model / "config.json").read_text())
    size = config["hidden_size"]
    for number in range(NUM_ADAPTERS):
        random, weights = np.random.default_rng(number), dict[str, np.ndarray]()
        for layer in range(config["num_hidden_layers"]):
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora"
            for side, shape in (("A", (RANK, size)), ("B", (size, RANK))):
                values = random.normal(0, 0.2, shape)
                weights[f"{name}_{side}.weight"] = values.astype(np.float32)
        adapter = folder / f"adapter-{number}"
        adapter.mkdir()
        save_file(weights, adapter / "adapter_model.safetensors")
        lora = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"]}
        (adapter / "adapter_config.json").write_text(json.dumps(lora))
        yield adapter.name, str(adapter)


async def _serve_adapters(
    adapters: dict[str, str], llm: AsyncLLM, round_: int
) -> tuple[float, Tokens]:
    """Serve a round's prompts at once; return the seconds and the tokens."""
    random = Random(round_)
    loras = [LoRARequest(name, i, adapters[name]) for i, name in enumerate(adapters, start=1)]
    began_s = perf_counter()
    async with asyncio.timeout(PATIENCE_S):
        tokens = await asyncio.gather(
            *(
                greedy_tokens(
                    llm,
                    f"{round_}-{number}",
                    _of(prompt_tokens(random, ADAPTER_PROMPT_TOKENS)),
                    ADAPTER_NEW_TOKENS,
                    lora,
                )
                for number, lora in enumerate(islice(cycle((None, *loras)), NUM_PROMPTS))
            )
        )
    return perf_counter() - began_s, tokens


# What the hybrid cache gains and costs: concurrent requests in the same pool, and tokens per second
# under Apt-Serve's policy, next to keys and values alone.

HYBRID_ROUNDS = 3
BURST = [Arrival(0.0, 200, 60)] * 48
"""Concurrent requests: many more than fit the memory."""

POOL_BYTES = 76 << 20
"""A hundred pages of the small OPT."""


async def measure_hybrid(
    settings: EngineSettings, num_rounds: int = HYBRID_ROUNDS
) -> dict[str, float]:
    """Return the figures of both engines, and the ratios of hybrid cache to keys and values alone.

    A process has room for one engine, so each serves a burst in turn, after a start.

    hybrid.running_ratio: ratio of the concurrent requests.
    hybrid.throughput_ratio: ratio of the tokens per second.

    Raises RuntimeError where the cache is off for the model, with the reason.
    """
    settings = replace(settings, strategy="aptserve", slo=NEVER_LATE, kv_cache_bytes=POOL_BYTES)
    running: dict[str, list[float]] = {"kv": [], "hybrid": []}
    rates: dict[str, list[float]] = {"kv": [], "hybrid": []}
    num_pages = 0
    each = {"hybrid": settings, "kv": replace(settings, hybrid_cache="Off")}
    for _, (name, own) in product(range(num_rounds), each.items()):
        async with started(own) as engine:
            if name == "hybrid" and not engine.shape.hybrid_cache.startswith("on"):
                raise RuntimeError(f"the hybrid cache is {engine.shape.hybrid_cache}")
            answers = await serve(engine, BURST, NEVER_LATE, "burst")
            num_pages = engine.shape.num_blocks
        running[name].append(at_a_time(answers))
        rates[name].append(tokens_per_s(answers))
    return {
        "hybrid.running_ratio": _ratio(running),
        "hybrid.throughput_ratio": _ratio(rates),
        "hybrid.pages": num_pages,
        **{f"hybrid.running.{name}": median(values) for name, values in running.items()},
        **{f"hybrid.tokens_per_s.{name}": median(values) for name, values in rates.items()},
    }


def at_a_time(answers: Sequence[Answer]) -> float:
    """Return the mean number of concurrent requests between first and last token, until the last
    begins."""
    last_s = max(answer.tokens_s[0] for answer in answers)
    return sum(min(a.tokens_s[-1], last_s) - a.tokens_s[0] for a in answers) / last_s


def tokens_per_s(answers: Sequence[Answer]) -> float:
    num_tokens = sum(len(answer.tokens_s) for answer in answers)
    return num_tokens / max(answer.tokens_s[-1] for answer in answers)


def _ratio(values: dict[str, list[float]]) -> float:
    return median(
        ours / theirs for ours, theirs in zip(values["hybrid"], values["kv"], strict=True)
    )
