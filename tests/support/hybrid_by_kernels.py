"""An engine on a CPU with interpreted Triton kernels for attention on hidden states.

    python -m support.hybrid_by_kernels FOLDER MODEL

The exit code is 0 if its tokens equal stock vLLM's. This needs a separate process, as Triton
chooses between interpreting and compiling when it is first imported.
"""

import os
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ["TRITON_INTERPRET"] = "1"

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

import torch  # noqa: E402
from support.offline_engine import (  # noqa: E402
    chosen_caches,
    instance_args,
    offline_engine,
)
from support.small_models import SIZES, build  # noqa: E402

from macroserve.core.request import Slo  # noqa: E402
from macroserve.core.scheduler.blocks import CacheKind  # noqa: E402
from macroserve.engine.settings import EngineSettings  # noqa: E402
from macroserve.engine.vllm.hybrid import layer, triton_attention  # noqa: E402
from macroserve.engine.vllm.hybrid.metadata import Rebuilt  # noqa: E402
from macroserve.engine.vllm.options import stock_args  # noqa: E402
from macroserve.kernels.attend_hidden import attend_hidden  # noqa: E402

NUM_TOKENS = 8


def main(folder: Path, name: str) -> None:
    settings = EngineSettings(
        model=str(build(folder, name)),
        served_name=name,
        max_model_len=256,
        strategy="aptserve",
        dtype="float32",
        slo=Slo(ttft_s=600.0, tpot_s=60.0),
        kv_cache_bytes=4 << 20,
        args={"skip_tokenizer_init": True},
    )
    rnd = random.Random(5)
    prompts = [[rnd.randrange(3, 2000) for _ in range(length)] for length in (1, 40, 63, 130)]
    tokens, attended = [], MagicMock(wraps=attend_hidden)
    triton_attention.attend_hidden = attended
    for args in (stock_args(settings), instance_args(settings)):
        with offline_engine(args) as engine, chosen_caches(lambda index: CacheKind.HIDDEN):
            for index, prompt in enumerate(prompts):
                engine.add(str(index), prompt, NUM_TOKENS)
            tokens.append(engine.finish())
            if args.scheduler_cls:
                check_rebuilt(engine)
        layer.has_kernels = lambda weight: True
    assert tokens[0] == tokens[1], tokens
    num_layers = SIZES["num_hidden_layers"]
    assert attended.call_count >= num_layers * (NUM_TOKENS - 1), "the kernels were not used"


def check_rebuilt(engine: Any) -> None:
    """Assert that the fused kernel, in the layout of a GPU's pages, computes the same keys and
    values as plain products."""
    core = engine.llm.engine_core.engine_core
    (attention, *_) = core.vllm_config.compilation_config.static_forward_context.values()
    hidden, cache, num_tokens = attention.impl.hidden, attention.kv_cache, 50
    tokens = Rebuilt(*(torch.randperm(num_tokens) for _ in range(3)))
    heads, size = attention.num_kv_heads, attention.head_size
    pages = torch.zeros(4, heads, 16, 2 * size)
    hidden.rebuild(cache, tokens, pages)
    expected = hidden.project(hidden.read(cache, tokens.read), tokens.positions)
    at = tokens.slots // 16, tokens.slots % 16
    for found, wanted in zip(pages.transpose(1, 2).split(size, -1), expected, strict=True):
        assert wanted.any()
        torch.testing.assert_close(found[at], wanted, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
