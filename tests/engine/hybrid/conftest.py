"""Engines run in this process, with models small enough for hundreds of schedules."""

import random
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import offline_engine  # noqa: E402
from support.small_models import build  # noqa: E402

from macroserve.engine.vllm.options import stock_args  # noqa: E402

PAGES = 100


class Work(NamedTuple):
    prompt: list[int]
    num_tokens: int


class Served(NamedTuple):
    """A small model is served, and stock vLLM's ``tokens`` for each of ``works`` are known."""

    settings: EngineSettings
    works: list[Work]
    tokens: list[list[int]]


@pytest.fixture(scope="session")
def serve(small_settings, tmp_path_factory):
    """Serve a model by name on an instance with a pool of some pages and further settings."""
    known: dict[str, Served] = {}

    def served(name: str, num_pages: int = PAGES, **fields: Any) -> Served:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            settings = replace(
                small_settings,
                model=str(build(folder, name)),
                served_name=name,
                strategy="aptserve",
                hybrid_cache="On",
            )
            works = workload()
            known[name] = Served(settings, works, stock_tokens(settings, works))
        served = known[name]
        args = {**served.settings.args, "num_gpu_blocks_override": num_pages + 1}
        return served._replace(settings=replace(served.settings, args=args, **fields))

    return served


def workload() -> list[Work]:
    rnd = random.Random(7)
    lengths = [(rnd.randrange(1, 250), rnd.randrange(1, 40)) for _ in range(20)]
    lengths += [(31, 2), (32, 33), (33, 40), (64, 1), (700, 70), (1, 60)]
    return [Work([rnd.randrange(3, 2000) for _ in range(n)], m) for n, m in lengths]


def stock_tokens(settings: EngineSettings, works: list[Work]) -> list[list[int]]:
    with offline_engine(stock_args(settings)) as engine:
        for index, work in enumerate(works):
            engine.add(str(index), *work)
        tokens = engine.finish()
    return [tokens[str(index)] for index in range(len(works))]
