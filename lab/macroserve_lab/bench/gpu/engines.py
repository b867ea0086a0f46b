"""Run an engine with greedy tokens on this machine's device, and print its steps per second.

    python -m macroserve_lab.bench.gpu.engines FOLDER build
    python -m macroserve_lab.bench.gpu.engines FOLDER ENGINE graphs|eager

FOLDER has the model. ENGINE is ``stock``, for vLLM's scheduler, or a key of ``ENGINES``. The last
line of the output is JSON.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, cast

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.outputs import RequestOutput  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine.core_client import InprocClient  # noqa: E402
from vllm.v1.engine.llm_engine import LLMEngine  # noqa: E402

from macroserve.core.request import Slo  # noqa: E402
from macroserve.core.status import Pool  # noqa: E402
from macroserve.engine.settings import EngineSettings  # noqa: E402
from macroserve.engine.vllm.caches import with_caches  # noqa: E402
from macroserve.engine.vllm.hybrid.cache_spec import HybridBlocks  # noqa: E402
from macroserve.engine.vllm.options import engine_args, stock_args  # noqa: E402
from macroserve.sim.hardware.models import shape_of  # noqa: E402
from macroserve_lab.greedy import greedy  # noqa: E402

MODEL = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    # Equal to the heads, so that hidden states are smaller than keys and values.
    "num_key_value_heads": 16,
    "max_position_embeddings": 1024,
    # Wide enough for different scores, as in a trained model.
    "initializer_range": 0.08,
}
DTYPE = "float32"
"""Type of weights and caches. In bfloat16 another order of sums soon changes a token; in float32
batches of another composition give the same tokens."""
NUM_REQUESTS, NUM_TOKENS = 64, 192
PROMPT_TOKENS = (16, 400)
NUM_ROUNDS = 3
ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Engine:
    """Settings of an engine with one of our strategies."""

    strategy: str
    hybrid_cache: str = "Off"
    """On or Off, as ``spec.engine.hybridCache``."""
    cache_share: float = 2.0
    """Size of the block pool, relative to the keys and values of all requests at their longest."""


ENGINES = {
    "vllm": Engine("vllm"),
    "unified": Engine("unified"),
    "hybrid": Engine("aptserve", "On", cache_share=0.2),
}
WITHOUT_COMPILED_OPERATORS = {
    "attention_backend": "TRITON_ATTN",
    "compilation_config": {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": [8, 16, 32, NUM_REQUESTS],
        "custom_ops": ["none"],
    },
}
"""Arguments for a GPU that avoid operators missing in torch and Triton."""
SLO = Slo(ttft_s=600.0, tpot_s=60.0)
"""Targets so loose that nothing is late."""


def build(folder: Path, sizes: dict[str, Any]) -> None:
    """Build a Llama of random weights."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.LlamaConfig(**sizes, dtype=getattr(torch, DTYPE))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def most_bytes(folder: Path) -> int:
    """Return the size of the keys and values of all requests at their longest."""
    shape = shape_of(json.loads((folder / "config.json").read_text()))
    num_tokens = NUM_REQUESTS * (PROMPT_TOKENS[1] + NUM_TOKENS)
    return ELEMENT_BYTES * shape.num_layers * shape.kv_size * num_tokens


def settings(folder: Path, engine: Engine, mode: str) -> EngineSettings:
    on_gpu = current_platform.is_cuda()
    return EngineSettings(
        model=str(folder),
        served_name="gpu-check",
        max_model_len=MODEL["max_position_embeddings"],
        strategy=engine.strategy,
        dtype=DTYPE,
        slo=SLO,
        prefix_caching="Off",
        hybrid_cache=engine.hybrid_cache,
        max_num_seqs=NUM_REQUESTS,
        kv_cache_bytes=int(engine.cache_share * most_bytes(folder)),
        args={
            "skip_tokenizer_init": True,
            "enforce_eager": mode == "eager",
            **(WITHOUT_COMPILED_OPERATORS if on_gpu else {}),
        },
    )


def started(folder: Path, name: str, mode: str) -> LLMEngine:
    if name == "stock":
        args = stock_args(settings(folder, ENGINES["vllm"], mode))
    else:
        chosen = settings(folder, ENGINES[name], mode)
        args, _ = with_caches(engine_args(chosen, Pool.LP, None), chosen)
    return LLMEngine.from_engine_args(args)


def prompts() -> list[list[int]]:
    rnd = Random(3)
    return [
        rnd.choices(range(3, MODEL["vocab_size"]), k=rnd.randint(*PROMPT_TOKENS))
        for _ in range(NUM_REQUESTS)
    ]


@dataclass(frozen=True, slots=True)
class Served:
    """The results of serving all prompts once."""

    tokens: list[list[int]]
    """Token ids by prompt."""
    steps_per_s: float
    hidden_share: float
    """Share of the running requests, over all steps, that kept hidden states."""


def serve(llm: LLMEngine, name: str, num_tokens: int) -> Served:
    scheduler: Any = cast(InprocClient, llm.engine_core).engine_core.scheduler
    blocks = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    params = greedy(num_tokens, output_kind=RequestOutputKind.DELTA)
    tokens: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts()):
        tokens[f"{name}-{index}"] = []
        llm.add_request(f"{name}-{index}", TokensPrompt(prompt_token_ids=prompt), params)
    began_s, num_steps, num_ran, num_hidden = perf_counter(), 0, 0, 0
    while llm.has_unfinished_requests():
        outputs = llm.step()
        num_steps += bool(outputs)
        running = scheduler.running
        num_ran += len(running)
        if isinstance(blocks, HybridBlocks):
            num_hidden += sum(blocks.is_hidden(request.request_id) for request in running)
        for output in outputs:
            assert isinstance(output, RequestOutput)
            tokens[output.request_id] += output.outputs[0].token_ids
    took_s = perf_counter() - began_s
    return Served([*tokens.values()], num_steps / took_s, num_hidden / num_ran)


def measure(folder: Path, name: str, mode: str, num_tokens: int = NUM_TOKENS) -> dict[str, Any]:
    llm = started(folder, name, mode)
    serve(llm, "warm-up", num_tokens)
    rounds = [serve(llm, f"round-{index}", num_tokens) for index in range(NUM_ROUNDS)]
    return {
        "dtype": DTYPE,
        "runner": "V2" if llm.vllm_config.use_v2_model_runner else "V1",
        "tokens": rounds[0].tokens,
        "steps_per_s": median(each.steps_per_s for each in rounds),
        "hidden_share": rounds[0].hidden_share,
    }


def main(folder: Path, name: str, mode: str = "") -> None:
    if name == "build":
        build(folder, MODEL)
    else:
        print(json.dumps(measure(folder, name, mode)), flush=True)
    # Without vLLM's shutdown.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
