"""Compare the tokens of an engine with stock vLLM's for models of several kinds."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from PIL import Image
from vllm.inputs import PromptType, TextPrompt, TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM

from macroserve.bench.real_engine import PATIENCE_S, greedy_tokens, prompt_tokens, started
from macroserve.engine.settings import EngineSettings
from macroserve_lab.bench.engine_pair import stock_engine
from macroserve_lab.bench.kind_models import build
from macroserve_lab.bench.quickstart import NEVER_LATE


class Kind(NamedTuple):
    """A kind of model is served in this way by both engines."""

    num_seqs: int = 8
    """Requests at a time."""
    attention_backend: str | None = None
    """vLLM's choice where None."""


KINDS = {
    "gemma3": Kind(),
    "gptoss": Kind(),
    # On a CPU, stock vLLM's own tokens of MLA depend on what else is in a batch, and its attention
    # for processors with AMX takes no float32 and no small heads.
    "mla": Kind(1, "CPU_MLA"),
    "moe": Kind(),
    "recurrent": Kind(),
    "vlm": Kind(),
}
NUM_REQUESTS = 12
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS = 300, 32
"""Tokens of a request at most, without those of its images."""
MAX_MODEL_LEN = 1024
"""Enough for requests with images, and for the prompt that warms stock vLLM up."""
NUM_PICTURES = 4
"""Pictures of which each request about images shows one or two, so that several show the same."""
WIDTH, HEIGHT = 50, 40

Tokens = list[list[int]]


async def measure(settings: EngineSettings, kinds: Mapping[str, Kind] = KINDS) -> dict[str, float]:
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
                # The model that sees images has a tokenizer; the others have none.
                args={
                    "skip_tokenizer_init": kind != "vlm",
                    "attention_backend": how.attention_backend,
                },
            )
            async with stock_engine(own) as llm:
                stock = await _serve(llm, kind)
            async with started(own) as engine:
                ours = await _serve(engine.llm, kind)
            equal = [mine == theirs for mine, theirs in zip(ours, stock, strict=True)]
            figures[f"engine.{kind}"] = sum(equal) / len(equal)
    return figures


async def _serve(llm: AsyncLLM, kind: str) -> Tokens:
    random = Random(7)
    prompts_of = _about_pictures if kind == "vlm" else _of_tokens
    sizes = [
        (random.randrange(1, MAX_PROMPT_TOKENS), random.randrange(1, MAX_NEW_TOKENS))
        for _ in range(NUM_REQUESTS)
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
    """Return prompts of words, as many as ``lengths`` says, each with pictures in it."""
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
