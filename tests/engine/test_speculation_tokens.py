"""Tokens equal stock vLLM's while others are drafted and verified, under every kind of strategy."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    OfflineEngine,
    instance_args,
    offline_engine,
)
from support.small_models import build  # noqa: E402
from vllm.inputs import TokensPrompt  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402

from macroserve.engine.vllm.options import stock_args  # noqa: E402

pytestmark = pytest.mark.integration

NUM_DRAFTS = 3
NUM_BLOCKS = 36
"""Blocks of the pool, so few that requests are preempted."""
MAX_MODEL_LEN = 1024


@pytest.fixture(scope="module")
def models(
    small_settings: EngineSettings, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return a model, by "itself", and one that drafts other tokens."""
    another = build(tmp_path_factory.mktemp("another"), "llama-gqa")
    return {"itself": small_settings.model, "another": str(another)}


@pytest.fixture(scope="module")
def settings(small_settings: EngineSettings) -> EngineSettings:
    args = {**small_settings.args, "num_gpu_blocks_override": NUM_BLOCKS + 1}
    return replace(
        small_settings,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=16,
        prefix_caching="Off",
        args=args,
    )


def drafted_by(settings: EngineSettings, draft: str, **changes: str) -> EngineSettings:
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": NUM_DRAFTS}
    return replace(settings, args={**settings.args, "speculative_config": config}, **changes)


@dataclass(frozen=True)
class Work:
    prompt: list[int]
    num_tokens: int
    stop_at: int | None = None


def workload() -> list[Work]:
    """Return requests of which some begin alike, one has a prompt of one token, and one ends where
    the model's length does."""
    rnd = random.Random(7)
    begin = [rnd.randrange(3, 2000) for _ in range(96)]
    lengths = [(rnd.randrange(1, 200), rnd.randrange(1, 20)) for _ in range(7)]
    lengths += [(1, 20), (32, 1), (64, 2), (MAX_MODEL_LEN - 9, 9)]
    works = [Work([rnd.randrange(3, 2000) for _ in range(n)], m) for n, m in lengths]
    return [*works, *(Work([*begin, token], 20) for token in range(3, 6)), Work(begin, 25)]


def tokens_of(engine: OfflineEngine, works: list[Work]) -> list[list[int]]:
    for index, work in enumerate(works):
        stop_ids = None if work.stop_at is None else [work.stop_at]
        engine.add(str(index), work.prompt, work.num_tokens, stop_token_ids=stop_ids)
        if index % 4 == 3:
            engine.step()
    while engine.unfinished:
        engine.step()
        if isinstance(engine, InstanceEngine):
            engine.check_reserved()
    tokens = engine.finish()
    return [tokens[str(index)] for index in range(len(works))]


@pytest.fixture(scope="module")
def stopping(settings: EngineSettings) -> tuple[list[Work], list[list[int]]]:
    """Return requests, some of which stop at a token, and their tokens without drafts."""
    with offline_engine(stock_args(settings)) as engine:
        tokens = tokens_of(engine, workload())
    works, wanted = workload(), tokens
    for index in (0, 4, 7):
        stop_at = tokens[index][len(tokens[index]) // 2]
        works[index] = replace(works[index], stop_at=stop_at)
        wanted[index] = tokens[index][: tokens[index].index(stop_at) + 1]
    return works, wanted


def test_stock_tokens_are_the_same_with_drafts(
    settings: EngineSettings, stopping: tuple[list[Work], list[list[int]]]
) -> None:
    works, wanted = stopping
    with offline_engine(stock_args(drafted_by(settings, settings.model))) as engine:
        assert tokens_of(engine, works) == wanted


@pytest.mark.parametrize(
    ("draft", "strategies"),
    [
        ("itself", tuple(STRATEGIES)),
        ("another", ("unified", "econoserve")),
    ],
    ids=["itself", "another"],
)
def test_tokens_with_drafts_equal_stock_vllm(
    draft: str,
    strategies: tuple[str, ...],
    is_async: bool,
    settings: EngineSettings,
    models: dict[str, str],
    stopping: tuple[list[Work], list[list[int]]],
) -> None:
    works, wanted = stopping
    # Engines whose model drafts for itself have a prefix cache.
    caching = "On" if draft == "itself" else "Off"
    args = instance_args(drafted_by(settings, models[draft], prefix_caching=caching))
    with offline_engine(args) as engine:
        for name in strategies:
            engine.decide_by(name)
            engine.preempt(0.5)
            assert tokens_of(engine, works) == wanted, name
            policy = engine.policy
            policy.running.blocks.check()
            assert policy.sequences == {}
            assert policy.running.blocks.free == NUM_BLOCKS
            in_flight = policy.in_flight
            share = in_flight.num_ahead / in_flight.num_begun
            assert share > 0.8 if is_async else share == 0
            status = policy.status(0.0)
            assert (status.cached_tokens > 0) == (caching == "On")
            accepted = status.decoded_tokens / status.decodes
            assert accepted > 2.5 if draft == "itself" else 1 <= accepted < 1.5


def test_stop_string_ends_a_text_with_drafts(settings: EngineSettings, tiny_model: Path) -> None:
    tiny = replace(settings, model=str(tiny_model), args={})
    with offline_engine(instance_args(drafted_by(tiny, tiny.model))) as engine:

        def text(request_id: str, stop: str | None) -> str:
            params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop)
            prompt = TokensPrompt(prompt_token_ids=[5, 6, 7])
            engine.llm.add_request(request_id, prompt, params)
            while True:
                for output in engine.llm.step():
                    if output.finished:
                        return output.outputs[0].text

        whole = text("whole", None)
        stop = whole[len(whole) // 2 :][:3]
        assert text("stopped", stop) == whole[: whole.index(stop)] != ""
