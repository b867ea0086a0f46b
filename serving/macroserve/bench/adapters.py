"""Compare an engine whose requests name adapters with stock vLLM.

Both engines run, and one of them serves at a time, so that a slow minute of the machine meets both.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
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

from macroserve.bench.prefixes import NEVER_LATE, stock
from macroserve.bench.real_engine import PATIENCE_S, greedy_tokens, prompt_tokens, started
from macroserve.engine.settings import EngineSettings

NUM_ADAPTERS, RANK = 4, 8
NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 30, 100, 24
NUM_ROUNDS = 5

Tokens = list[list[int]]


async def measure(settings: EngineSettings, num_rounds: int = NUM_ROUNDS) -> dict[str, float]:
    """Return the figures of requests for the model and its adapters in turn, all at once.

    engine.lora.tokens_equal: share of the responses that are those of stock vLLM.
    engine.lora.speedup_of_stock: requests per second, ours over stock vLLM's, in the median round.
    """
    ratios, equal = list[float](), list[bool]()
    with TemporaryDirectory() as folder:
        adapters = dict(_adapters(Path(folder), Path(settings.model)))
        settings = replace(settings, slo=NEVER_LATE, prefix_caching="On", adapters=adapters)
        async with AsyncExitStack() as stack:
            ours = (await stack.enter_async_context(started(settings))).llm
            theirs = await stack.enter_async_context(stock(settings))
            for round_ in range(num_rounds):
                order = (theirs, ours) if round_ % 2 else (ours, theirs)
                found = {llm: await _serve(llm, adapters, round_) for llm in order}
                ratios.append(found[theirs][0] / found[ours][0])
                equal += [a == b for a, b in zip(found[ours][1], found[theirs][1], strict=True)]
    return {
        "engine.lora.tokens_equal": mean(equal),
        "engine.lora.speedup_of_stock": median(ratios),
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


async def _serve(llm: AsyncLLM, adapters: dict[str, str], round_: int) -> tuple[float, Tokens]:
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
