"""Compare an engine whose requests name adapters with stock vLLM."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from safetensors.numpy import save_file
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from macroserve.bench.real_engine import PATIENCE_S, greedy_tokens, prompt_tokens
from macroserve.engine.settings import EngineSettings
from macroserve_lab.bench.engine_pair import engine_pair
from macroserve_lab.bench.quickstart import NEVER_LATE

NUM_ADAPTERS, RANK = 4, 8
NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 30, 100, 24
NUM_ROUNDS = 3
"""Rounds of each order in which the engines start."""

Tokens = list[list[int]]


async def measure(settings: EngineSettings, num_rounds: int = NUM_ROUNDS) -> dict[str, float]:
    """Return the figures of requests for the model and its adapters in turn, all at once.

    engine.lora.tokens_equal: share of the responses that are those of stock vLLM.
    engine.lora.speedup_of_stock: requests per second, ours over stock vLLM's, in the median round;
        mean of both orders in which the engines start.
    """
    speedups, equal = list[float](), list[bool]()
    with TemporaryDirectory() as folder:
        adapters = dict(_adapters(Path(folder), Path(settings.model)))
        settings = replace(settings, slo=NEVER_LATE, prefix_caching="On", adapters=adapters)
        for ours_first in (True, False):
            async with engine_pair(settings, ours_first=ours_first) as pair:
                rounds = await pair.rounds(num_rounds, partial(_serve, adapters))
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


async def _serve(adapters: dict[str, str], llm: AsyncLLM, round_: int) -> tuple[float, Tokens]:
    """Serve a round's prompts at once; return the seconds that it took, and the tokens."""
    random = Random(round_)
    loras = [LoRARequest(name, i, adapters[name]) for i, name in enumerate(adapters, start=1)]
    began_s = perf_counter()
    async with asyncio.timeout(PATIENCE_S):
        tokens = await asyncio.gather(
            *(
                greedy_tokens(
                    llm,
                    f"{round_}-{number}",
                    TokensPrompt(prompt_token_ids=prompt_tokens(random, PROMPT_TOKENS)),
                    NEW_TOKENS,
                    lora,
                )
                for number, lora in enumerate(islice(cycle((None, *loras)), NUM_PROMPTS))
            )
        )
    return perf_counter() - began_s, tokens
