"""A rehearsed engine in a separate process, because vLLM has one platform in each."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from macroserve.engine.rehearsal import Rehearsal
from macroserve.engine.settings import EngineSettings

TIMEOUT_S = 240


@dataclass(frozen=True)
class Run:
    """Answers of a rehearsed engine."""

    tokens: dict[str, list[int]]
    """Tokens of each answer, by request."""
    logprobs: dict[str, list[dict[str, float]]]
    """Logprobs of each token and its alternatives, by token, of requests that want them."""
    texts: dict[str, str]
    settings: dict[str, Any]
    """Sizes that vLLM has chosen, and the blocks of its cache."""
    steps: list[dict[str, Any]]
    """Lines of the log of steps."""


def rehearsed(
    settings: EngineSettings,
    requests: list[dict[str, Any]],
    folder: Path,
    rehearsal: Rehearsal = Rehearsal(device="L20-48GB"),  # noqa: B008
    is_stock: bool = False,
) -> Run:
    """Serve requests by an engine whose steps take the time of a modelled device.

    requests: for each its ``prompt`` (token IDs), ``num_tokens``, and sampling parameters; ``json``
    is a schema.
    folder: for the log of steps.
    """
    job = {"settings": settings.to_dict(), "requests": requests, "is_stock": is_stock}
    logged = msgspec.structs.replace(rehearsal, log_folder=str(folder))
    ended = subprocess.run(
        [sys.executable, "-m", "support.rehearsed_engine"],
        input=json.dumps(job),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **logged.environment()},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    (log,) = folder.glob("steps-*.jsonl")
    return Run(**answer, steps=[json.loads(line) for line in log.read_text().splitlines()])


def main() -> None:
    job = json.load(sys.stdin)
    from macroserve.engine.vllm.environment import prepare_environment

    prepare_environment()

    from vllm.sampling_params import StructuredOutputsParams

    from macroserve.engine.vllm.options import stock_args
    from macroserve_lab.bench.offline_engine import OfflineEngine, instance_args, offline_engine

    settings = EngineSettings.from_dict(job["settings"])
    args = stock_args(settings) if job["is_stock"] else instance_args(settings)
    with offline_engine(args, OfflineEngine) as engine:
        for number, request in enumerate(job["requests"]):
            if schema := request.pop("json", None):
                outputs = StructuredOutputsParams(json=schema)
                request |= {"structured_outputs": outputs, "ignore_eos": False}
            engine.add(str(number), detokenize=True, **request)
        engine.finish()
        answers = {name: output.outputs[0] for name, output in engine.outputs.items()}
        config = engine.llm.vllm_config
    answer = {
        "tokens": {name: list(each.token_ids) for name, each in answers.items()},
        "logprobs": {
            name: [{str(t): p.logprob for t, p in position.items()} for position in each.logprobs]
            for name, each in answers.items()
            if each.logprobs
        },
        "texts": {name: each.text for name, each in answers.items()},
        "settings": {
            "batch_tokens": config.scheduler_config.max_num_batched_tokens,
            "seqs": config.scheduler_config.max_num_seqs,
            "is_async": config.scheduler_config.async_scheduling,
            "block_size": config.cache_config.block_size,
            "num_blocks": config.cache_config.num_gpu_blocks,
        },
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
