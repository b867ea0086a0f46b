"""Tokens equal stock vLLM's for models whose layers attend in other ways, or hold experts."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import pytest

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment
from macroserve_lab.bench.kind_models import build

prepare_environment()

from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    instance_args,
    offline_engine,
)

from macroserve.engine.vllm.options import stock_args  # noqa: E402
from macroserve_lab.bench.offline_engine import forced_async  # noqa: E402

pytestmark = pytest.mark.integration

STRATEGIES = ("unified", "vllm", "ecoserve")
Tokens = dict[str, list[int]]


class Kind(NamedTuple):
    """A kind of model, and how its engines run.

    Attributes:
        num_blocks: Blocks of a pool in which its requests are preempted.
        num_seqs: Requests at a time.
        modes: Whether an engine schedules ahead.
        prefix_caching: Whether one that does has a prefix cache.
    """

    model: str
    num_blocks: int
    modes: tuple[str, ...] = ("async",)
    prefix_caching: str = "On"
    num_seqs: int = 8
    backend: str | None = None
    """Attention of vLLM's, by name."""


KINDS = (
    Kind("gemma3", 110, ("sync", "async")),
    Kind("gptoss", 50),
    # On a CPU, stock vLLM's own tokens of such a model depend on what else is in a batch.
    # Its attention for processors with AMX takes no float32.
    Kind("mla", 60, ("sync",), num_seqs=1, backend="CPU_MLA"),
    Kind("moe", 30),
    # vLLM's kernel for CPUs fails on prompts that share states.
    Kind("recurrent", 32, prefix_caching="Off"),
)


class Case(NamedTuple):
    kind: Kind
    settings: EngineSettings
    tokens: Tokens
    """Tokens of stock vLLM without a prefix cache."""


def workload() -> list[tuple[list[int], int]]:
    """Return prompts of which some begin alike, most of them longer than the windows."""
    rnd = random.Random(5)
    shared = [rnd.randrange(3, 2000) for _ in range(200)]
    lengths = [(rnd.randrange(1, 120), rnd.randrange(1, 40)) for _ in range(10)]
    work = [([rnd.randrange(3, 2000) for _ in range(n)], m) for n, m in [*lengths, (400, 80)]]
    work += [(shared[:n] + [rnd.randrange(3, 2000)] * 5, 20) for n in (64, 96, 180, 200)]
    return work


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.model)
def case(
    request: pytest.FixtureRequest,
    small_settings: EngineSettings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Case:
    kind: Kind = request.param
    settings = replace(
        small_settings,
        model=str(build(tmp_path_factory.mktemp(kind.model), kind.model)),
        served_name=kind.model,
        max_model_len=512,
        max_num_seqs=kind.num_seqs,
        max_batch_tokens=128,
        prefix_caching="Off",
        args={
            **small_settings.args,
            "num_gpu_blocks_override": kind.num_blocks + 1,
            "attention_backend": kind.backend,
        },
    )
    with offline_engine(stock_args(settings)) as engine:
        return Case(kind, settings, _served(engine))


@contextmanager
def _engine(case: Case, mode: str) -> Iterator[InstanceEngine]:
    is_ahead = mode == "async"
    caching = case.kind.prefix_caching if is_ahead else "Off"
    args = instance_args(replace(case.settings, prefix_caching=caching))
    with forced_async() if is_ahead else nullcontext(), offline_engine(args) as engine:
        yield engine


def _served(engine: InstanceEngine) -> Tokens:
    for index, work in enumerate(workload()):
        engine.add(str(index), *work)
    return engine.finish()


def test_tokens_of_a_kind_of_model_equal_stock_vllm(case: Case) -> None:
    for mode in case.kind.modes:
        with _engine(case, mode) as engine:
            for name in STRATEGIES:
                engine.decide_by(name)
                assert _served(engine) == case.tokens, f"{name}, {mode}"
                assert engine.policy.running.blocks.free == case.kind.num_blocks
                engine.policy.running.blocks.check()
