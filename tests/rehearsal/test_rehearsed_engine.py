"""Real vLLM engines whose device is a clock."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rehearsed_engine import rehearsed
from transformers import AutoTokenizer

from macroserve.core.request import Slo
from macroserve.engine.rehearsal import Rehearsal
from macroserve.engine.settings import EngineSettings
from macroserve.local.tiny_model import ensure_tiny_model
from macroserve.rehearsal.tokens import Answers

pytestmark = pytest.mark.integration

SCALE = 4.0
LOAD = [
    {"prompt": [100 + number, *range(200, 200 + 40 * number)], "num_tokens": 30 + 5 * number}
    for number in range(8)
]


@pytest.fixture(scope="module")
def settings() -> EngineSettings:
    return EngineSettings(
        model=str(ensure_tiny_model()),
        served_name="tiny",
        max_model_len=1024,
        strategy="unified",
        slo=Slo(ttft_s=600.0, tpot_s=60.0),
    )


def load() -> list[dict[str, Any]]:
    return [dict(request) for request in LOAD]


def expected(settings: EngineSettings) -> dict[str, list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    vocab_size = json.loads((Path(settings.model) / "config.json").read_text())["vocab_size"]
    answers = Answers.of(tokenizer, vocab_size)
    return {
        str(number): answers.tokens(
            answers.name(request["prompt"]), len(request["prompt"]), request["num_tokens"]
        )
        for number, request in enumerate(LOAD)
    }


@pytest.mark.parametrize("is_stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_tokens_follow_prompt_and_position_whatever_the_batches(
    settings: EngineSettings, is_stock: bool, is_async: bool, tmp_path: Path
) -> None:
    settings = replace(settings, args={"async_scheduling": is_async})
    run = rehearsed(settings, load(), tmp_path, is_stock=is_stock)
    assert run.tokens == expected(settings)
    assert run.settings["is_async"] == is_async


def test_preempted_requests_continue_their_answers(
    settings: EngineSettings, tmp_path: Path
) -> None:
    crowded = replace(settings, kv_cache_bytes=9 << 20, max_model_len=512)
    run = rehearsed(crowded, load(), tmp_path)
    assert run.tokens == expected(settings)
    num_tokens = sum(len(each["prompt"]) + each["num_tokens"] for each in LOAD)
    assert run.settings["num_blocks"] * run.settings["block_size"] < num_tokens


@pytest.mark.parametrize(
    ("device", "batch_tokens", "seqs"), [("L20-48GB", 2048, 256), ("H100-80GB", 8192, 1024)]
)
def test_limits_and_cache_are_those_of_the_device(
    settings: EngineSettings, device: str, batch_tokens: int, seqs: int, tmp_path: Path
) -> None:
    run = rehearsed(settings, load()[:1], tmp_path, Rehearsal(device=device))
    assert (run.settings["batch_tokens"], run.settings["seqs"]) == (batch_tokens, seqs)
    assert run.settings["block_size"] == 16 and run.settings["is_async"]


def drafting(settings: EngineSettings, is_async: bool) -> EngineSettings:
    speculation = {"model": settings.model, "num_speculative_tokens": 3, "method": "draft_model"}
    return replace(settings, args={"speculative_config": speculation, "async_scheduling": is_async})


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_accepted_drafts_shorten_the_decode_by_their_share(
    settings: EngineSettings, is_async: bool, tmp_path: Path
) -> None:
    device = Rehearsal(device="L20-48GB", draft_acceptance=0.7)
    requests = [{"prompt": [number] * 20, "num_tokens": 200} for number in range(1, 9)]
    run = rehearsed(drafting(settings, is_async), requests, tmp_path, device)
    assert {len(tokens) for tokens in run.tokens.values()} == {200}
    # A step gives 1 + 0.7 + 0.7^2 + 0.7^3 tokens on average.
    assert len(run.steps) == pytest.approx(200 / 2.533, rel=0.2)


def test_json_answer_conforms_to_its_schema_with_drafts_and_logprobs(
    settings: EngineSettings, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    requests: list[dict[str, Any]] = [
        {"prompt": [1, 2, 3], "num_tokens": 60, "json": schema},
        {"prompt": [4, 5, 6], "num_tokens": 12, "logprobs": 2},
        {"prompt": [7, 8, 9], "num_tokens": 12},
    ]
    run = rehearsed(drafting(settings, True), requests, tmp_path)
    assert json.loads(run.texts["0"])["n"] in (1, 2)
    assert [len(each) for each in run.logprobs["1"]] == [2] * 12
    for token, found in zip(run.tokens["1"], run.logprobs["1"], strict=True):
        assert max(found, key=lambda t: found[t]) == str(token)
    assert run.logprobs.keys() == {"1"}
