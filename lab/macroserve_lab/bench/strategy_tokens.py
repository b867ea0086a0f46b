"""Compare the tokens of an engine with stock vLLM's: under each strategy, with steps that are
scheduled one by one or ahead, without and with a prefix cache."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from random import Random

from vllm.engine.arg_utils import AsyncEngineArgs

from macroserve.bench.real_engine import prompt_tokens
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.options import stock_args
from macroserve_lab.bench.forced_async import forced_async
from macroserve_lab.bench.offline_engine import OfflineEngine, instance_args, offline_engine
from macroserve_lab.bench.quickstart import NEVER_LATE

MODES = {"sync": nullcontext, "async": forced_async}
CACHES = {"": "Off", "_prefixes": "On"}
NUM_REQUESTS = 24
NUM_BLOCKS = 60
"""Blocks of the pool, so few that stock vLLM preempts requests, and cached blocks are dropped."""
SHARED_TOKENS = (96, 250, 500)
"""Tokens that prompts begin with and others as well."""
MAX_OWN_TOKENS, MAX_NEW_TOKENS = 90, 50
MAX_MODEL_LEN = 1024

Work = list[tuple[list[int], int]]


def measure(
    settings: EngineSettings, strategies: tuple[str, ...] = tuple(STRATEGIES)
) -> dict[str, float]:
    """Return, as ``engine.STRATEGY.MODE.tokens_equal``, the share of requests whose greedy tokens
    equal stock vLLM's without a prefix cache; the least share as ``engine.tokens_equal``.

    MODE is ``sync`` or ``async``, with ``_prefixes`` where prompts share cache blocks.
    """
    settings = replace(
        settings,
        slo=NEVER_LATE,
        max_model_len=MAX_MODEL_LEN,
        args={**settings.args, "num_gpu_blocks_override": NUM_BLOCKS + 1},
        prefix_caching="Off",
        hybrid_cache="Off",  # it excludes steps that are scheduled ahead
    )
    work = _work()
    stock = _serve(stock_args(settings), work)
    figures: dict[str, float] = {}
    for name, mode, cache in product(strategies, MODES, CACHES):
        own = replace(settings, strategy=name, prefix_caching=CACHES[cache])
        with MODES[mode]():
            tokens = _serve(instance_args(own), work)
        equal = [mine == theirs for mine, theirs in zip(tokens, stock, strict=True)]
        figures[f"engine.{name}.{mode}{cache}.tokens_equal"] = sum(equal) / len(equal)
    return {"engine.tokens_equal": min(figures.values()), **figures}


def _work() -> Work:
    """Return prompts, of which many begin alike, each with the number of tokens to answer."""
    random = Random(11)
    shared = [prompt_tokens(random, length) for length in SHARED_TOKENS]
    return [
        (
            random.choice(shared) + prompt_tokens(random, random.randint(1, MAX_OWN_TOKENS)),
            random.randint(1, MAX_NEW_TOKENS),
        )
        for _ in range(NUM_REQUESTS)
    ]


def _serve(args: AsyncEngineArgs, work: Work) -> list[list[int]]:
    with offline_engine(args, OfflineEngine) as engine:
        for index, (prompt, num_tokens) in enumerate(work):
            engine.add(str(index), prompt, num_tokens)
            engine.step()  # they come one after the other, so that later ones find a beginning
        tokens = engine.finish()
    return [tokens[str(index)] for index in range(len(work))]
