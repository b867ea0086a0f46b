"""Compare tokens with stock vLLM's: under each strategy, and of models of several kinds."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from PIL import Image
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import PromptType, TextPrompt, TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM

from macroserve.bench.real_engine import PATIENCE_S, prompt_tokens
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.options import stock_args
from macroserve_lab.bench.engine_pairs import greedy_tokens, our_engine, stock_engine
from macroserve_lab.bench.kind_models import build
from macroserve_lab.bench.offline_engine import (
    OfflineEngine,
    forced_async,
    instance_args,
    offline_engine,
)
from macroserve_lab.bench.quickstart import NEVER_LATE

# Steps that are scheduled one by one or ahead, without and with a prefix cache.

MODES = {"sync": nullcontext, "async": forced_async}
CACHES = {"": "Off", "_prefixes": "On"}
NUM_REQUESTS = 24
NUM_BLOCKS = 60
"""Blocks of the pool, so few that stock vLLM preempts requests, and cached blocks are dropped."""
SHARED_TOKENS = (96, 250, 500)
"""Lengths of shared prefixes in tokens."""
MAX_OWN_TOKENS, MAX_NEW_TOKENS = 90, 50

Work = list[tuple[list[int], int]]


def measure_strategies(
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
    """Return prompts, many with shared prefixes, each with the number of tokens to generate."""
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
            engine.step()  # one after the other, so that later ones find a cached prefix
        tokens = engine.finish()
    return [tokens[str(index)] for index in range(len(work))]


# Kinds of models.


class Kind(NamedTuple):
    """Settings of both engines for a kind of model."""

    num_seqs: int = 8
    """Requests at a time."""
    attention_backend: str | None = None
    """vLLM's choice where None."""


KINDS = {
    "gemma3": Kind(),
    "gptoss": Kind(),
    # On a CPU, stock vLLM's tokens with MLA depend on the rest of the batch, and its attention for
    # processors with AMX supports neither float32 nor small heads.
    "mla": Kind(1, "CPU_MLA"),
    "moe": Kind(),
    "recurrent": Kind(),
    "vlm": Kind(),
}
NUM_OF_KIND = 12
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS_OF_KIND = 300, 32
"""Maximum tokens of a request, without those of its images."""
MAX_MODEL_LEN = 1024
"""Enough for requests with images, and for stock vLLM's warm-up prompt."""
NUM_PICTURES = 4
"""Pictures, of which each request with images has one or two, so that some are reused."""
WIDTH, HEIGHT = 50, 40

Tokens = list[list[int]]


async def measure_kinds(
    settings: EngineSettings, kinds: Mapping[str, Kind] = KINDS
) -> dict[str, float]:
    """Return for each kind, as ``engine.KIND``, the share of requests whose greedy tokens equal
    stock vLLM's: 1 if the kind is served."""
    figures: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        for kind, how in kinds.items():
            model = str(build(Path(folder) / kind, kind))
            own = replace(
                settings,
                model=model,
                slo=NEVER_LATE,
                max_model_len=MAX_MODEL_LEN,
                max_num_seqs=how.num_seqs,
                # Only the model with images has a tokenizer.
                args={
                    "skip_tokenizer_init": kind != "vlm",
                    "attention_backend": how.attention_backend,
                },
            )
            async with stock_engine(own) as llm:
                stock = await _serve_kind(llm, kind)
            async with our_engine(own) as llm:
                ours = await _serve_kind(llm, kind)
            equal = [mine == theirs for mine, theirs in zip(ours, stock, strict=True)]
            figures[f"engine.{kind}"] = sum(equal) / len(equal)
    return figures


async def _serve_kind(llm: AsyncLLM, kind: str) -> Tokens:
    random = Random(7)
    prompts_of = _about_pictures if kind == "vlm" else _of_tokens
    sizes = [
        (random.randrange(1, MAX_PROMPT_TOKENS), random.randrange(1, MAX_NEW_TOKENS_OF_KIND))
        for _ in range(NUM_OF_KIND)
    ]
    prompts = prompts_of(random, [num_prompt for num_prompt, _ in sizes])
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(
            *(
                greedy_tokens(llm, f"kind-{index}", prompt, sizes[index][1])
                for index, prompt in enumerate(prompts)
            )
        )


def _of_tokens(random: Random, lengths: Sequence[int]) -> list[PromptType]:
    return [TokensPrompt(prompt_token_ids=prompt_tokens(random, length)) for length in lengths]


def _about_pictures(random: Random, lengths: Sequence[int]) -> list[PromptType]:
    """Return prompts of ``lengths`` words, each with pictures."""
    pictures = [
        Image.frombytes("RGB", (WIDTH, HEIGHT), random.randbytes(3 * WIDTH * HEIGHT))
        for _ in range(NUM_PICTURES)
    ]
    prompts: list[PromptType] = []
    for length in lengths:
        shown = random.sample(pictures, random.randint(1, 2))
        words = [f"w{token}" for token in prompt_tokens(random, length)]
        for _ in shown:
            words.insert(random.randint(0, len(words)), "<image>")
        prompts.append(TextPrompt(prompt=" ".join(words), multi_modal_data={"image": shown}))
    return prompts
