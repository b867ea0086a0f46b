"""An engine on a CPU whose hidden states are attended to by the Triton kernels, interpreted.

    python -m support.hybrid_by_kernels FOLDER MODEL

Ends with 0 where its tokens are those of stock vLLM. In a process of its own: what Triton compiles
or interprets is settled when it is first imported.
"""

import os
import random
import sys
from pathlib import Path
from unittest.mock import MagicMock

os.environ["TRITON_INTERPRET"] = "1"

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import (  # noqa: E402
    chosen_caches,
    instance_args,
    offline_engine,
    stock_args,
)
from support.small_models import SIZES, build  # noqa: E402

from macroserve.core.request import Slo  # noqa: E402
from macroserve.core.scheduler.blocks import CacheKind  # noqa: E402
from macroserve.engine.settings import EngineSettings  # noqa: E402
from macroserve.engine.vllm.hybrid import layer, triton_attention  # noqa: E402
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
        layer.has_kernels = lambda weight: True
    assert tokens[0] == tokens[1], tokens
    num_layers = SIZES["num_hidden_layers"]
    assert attended.call_count >= num_layers * (NUM_TOKENS - 1), "the kernels were not used"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
