"""Compare an engine under prompts with common beginnings with stock vLLM, both with prefix
caches."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from statistics import mean, median
from time import perf_counter

from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats

from macroserve.bench.real_engine import PATIENCE_S, learned, prompt_tokens
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.engine import VllmEngine
from macroserve.engine.vllm.greedy import greedy
from macroserve_lab.bench.engine_pair import engine_pair
from macroserve_lab.bench.quickstart import NEVER_LATE

SHARES = {"half": 0.5, "nine_tenths": 0.9}
"""Share of each prompt that others have as well, by the name of the load."""
NUM_GROUPS, PROMPTS_PER_GROUP = 4, 12
PROMPT_TOKENS, NEW_TOKENS = 640, 16
NUM_ROUNDS = 3
"""Rounds of each order in which the engines start."""
NUM_ALONE = 8
"""Prompts of each load that each pair of engines serves alone, to compare the prediction of their
prefill."""

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Load:
    """A load is a number of groups of prompts that begin with the same tokens."""

    name: str
    share: float

    def prompts(self, seed: str) -> Prompts:
        """Return the prompts of all groups, shuffled. Those of other seeds begin otherwise."""
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


async def measure(settings: EngineSettings, num_rounds: int = NUM_ROUNDS) -> dict[str, float]:
    """Return the figures of each load.

    engine.prefix.speedup_of_stock: requests per second, ours over stock vLLM's, of all at once, in
        the median round; mean of both orders in which the engines start.
    engine.prefix.prediction_error: median error of the predicted prefill, relative to the prefill
        time as vLLM measures it (from when the engine schedules the request to its first token), of
        prompts that are served alone and find their beginning.
    """
    settings = replace(settings, slo=NEVER_LATE, hybrid_cache="Off", prefix_caching="On")
    speedups, errors = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for ours_first in (True, False):
        async with engine_pair(settings, ours_first=ours_first) as pair:
            names = count()
            for load_name, share in SHARES.items():
                load = Load(load_name, share)
                taken_s = await pair.rounds(num_rounds, partial(_serve, load, names))
                speedups[load_name].append(median(stock_s / our_s for our_s, stock_s in taken_s))
                errors[load_name] += await _errors(pair.ours, load.prompts("alone"), names)
    return {
        **{f"engine.prefix.speedup_of_stock.{name}": mean(speedups[name]) for name in SHARES},
        **{f"engine.prefix.prediction_error.{name}": median(errors[name]) for name in SHARES},
    }


async def _serve(load: Load, names: count, llm: AsyncLLM, round_: int) -> float:
    """Serve all prompts of a round at once; return the seconds that it took."""
    prompts = load.prompts(str(round_))
    began_s = perf_counter()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(_generate(llm, prompt, str(next(names))) for prompt in prompts))
    return perf_counter() - began_s


async def _errors(engine: VllmEngine, prompts: Prompts, names: count) -> list[float]:
    """Return the relative errors of the predicted prefills of prompts that find their beginning."""
    errors: list[float] = []
    for prompt in prompts:
        latency = await learned(engine)
        prefill_s, num_cached = await _generate(engine.llm, prompt, str(next(names)))
        if num_cached:
            predicted_s = latency.prefill_s(len(prompt) - num_cached, num_cached)
            errors.append(abs(predicted_s - prefill_s) / prefill_s)
        if len(errors) == NUM_ALONE:
            break
    return errors


async def _generate(llm: AsyncLLM, prompt: list[int], request_id: str) -> tuple[float, int]:
    """Return the seconds of a prompt's prefill, and its tokens that the prefix cache had."""
    params = greedy(NEW_TOKENS, output_kind=RequestOutputKind.DELTA)
    prefill_s, num_cached = 0.0, 0
    async for output in llm.generate(TokensPrompt(prompt_token_ids=prompt), params, request_id):
        if not prefill_s and isinstance(output.metrics, RequestStateStats):
            prefill_s = output.metrics.first_token_ts - output.metrics.scheduled_ts
            num_cached = output.num_cached_tokens or 0
    return prefill_s, num_cached
