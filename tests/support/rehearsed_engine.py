"""A rehearsed engine in a process of its own, since a process has one platform."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from macroserve.engine.rehearsal import Rehearsal
from macroserve.engine.settings import EngineSettings

TIMEOUT_S = 240


@dataclass(frozen=True)
class Run:
    """Answers of a rehearsed engine."""

    tokens: dict[str, list[int]]
    """Tokens of each answer, by request."""
    logprobs: dict[str, list[dict[str, float]]]
    """Logprobs of each token and its alternatives, by token."""
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
    environment = replace_folder(rehearsal, folder).environment()
    ended = subprocess.run(
        [sys.executable, "-m", "support.rehearsed_engine"],
        input=json.dumps(job),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    (log,) = folder.glob("steps-*.jsonl")
    return Run(**answer, steps=[json.loads(line) for line in log.read_text().splitlines()])


def replace_folder(rehearsal: Rehearsal, folder: Path) -> Rehearsal:
    fields = {name: getattr(rehearsal, name) for name in rehearsal.__struct_fields__}
    return Rehearsal(**{**fields, "log_folder": str(folder)})


def main() -> None:
    job = json.load(sys.stdin)
    from macroserve.core.status import Pool
    from macroserve.engine.vllm.environment import prepare_environment

    prepare_environment()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
    from vllm.v1.engine.llm_engine import LLMEngine

    from macroserve.engine.vllm.caches import with_caches
    from macroserve.engine.vllm.options import engine_args, stock_args

    settings = EngineSettings.from_dict(job["settings"])
    if job["is_stock"]:
        args = stock_args(settings)
    else:
        args, _ = with_caches(engine_args(settings, Pool.LP, None), settings)
    llm = LLMEngine.from_engine_args(replace(args, disable_log_stats=True))
    for number, request in enumerate(job["requests"]):
        prompt, num_tokens = request.pop("prompt"), request.pop("num_tokens")
        if schema := request.pop("json", None):
            request["structured_outputs"] = StructuredOutputsParams(json=schema)
        params = SamplingParams(
            max_tokens=num_tokens,
            ignore_eos="structured_outputs" not in request,
            temperature=0.0,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **request,
        )
        llm.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), params)
    outputs = {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            outputs[output.request_id] = output.outputs[0]
    config = llm.vllm_config
    answer = {
        "tokens": {name: list(output.token_ids) for name, output in outputs.items()},
        "logprobs": {
            name: [{str(t): p.logprob for t, p in each.items()} for each in output.logprobs or []]
            for name, output in outputs.items()
        },
        "texts": {name: output.text for name, output in outputs.items()},
        "settings": {
            "batch_tokens": config.scheduler_config.max_num_batched_tokens,
            "seqs": config.scheduler_config.max_num_seqs,
            "is_async": config.scheduler_config.async_scheduling,
            "block_size": config.cache_config.block_size,
            "num_blocks": config.cache_config.num_gpu_blocks,
        },
    }
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
