"""Compare the tokens of an engine with stock vLLM's for models of several kinds."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from vllm.v1.engine.async_llm import AsyncLLM

from macroserve.bench.kind_models import build
from macroserve.bench.prefixes import NEVER_LATE
from macroserve.bench.prefixes import stock as stock_engine
from macroserve.bench.real_engine import PATIENCE_S, greedy_tokens, prompt_tokens, started
from macroserve.engine.settings import EngineSettings

KINDS = {"gemma3": 8, "gptoss": 8, "mla": 1, "moe": 8}
"""Requests at a time, by kind. On a CPU, stock vLLM's own tokens of MLA depend on what else is in a
batch."""
NUM_REQUESTS = 12
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS = 300, 32

Tokens = list[list[int]]


async def measure(settings: EngineSettings, kinds: Mapping[str, int] = KINDS) -> dict[str, float]:
    """Return for each kind, as ``engine.KIND``, the share of requests whose greedy tokens equal
    stock vLLM's: 1 if the kind is served."""
    figures: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        for kind, num_seqs in kinds.items():
            model = str(build(Path(folder) / kind, kind))
            args = {"skip_tokenizer_init": True}
            own = replace(
                settings,
                model=model,
                slo=NEVER_LATE,
                max_model_len=512,
                max_num_seqs=num_seqs,
                args=args,
            )
            async with stock_engine(own) as llm:
                stock = await _serve(llm)
            async with started(own) as engine:
                ours = await _serve(engine.llm)
            equal = [mine == theirs for mine, theirs in zip(ours, stock, strict=True)]
            figures[f"engine.{kind}"] = sum(equal) / len(equal)
    return figures


async def _serve(llm: AsyncLLM) -> Tokens:
    random = Random(7)
    sizes = [
        (random.randrange(1, MAX_PROMPT_TOKENS), random.randrange(1, MAX_NEW_TOKENS))
        for _ in range(NUM_REQUESTS)
    ]
    prompts = [prompt_tokens(random, num_prompt) for num_prompt, _ in sizes]
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(
            *(
                greedy_tokens(llm, f"kind-{index}", prompt, sizes[index][1])
                for index, prompt in enumerate(prompts)
            )
        )
