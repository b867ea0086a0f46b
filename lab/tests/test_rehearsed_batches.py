"""Rehearsed engines schedule the batches of a dry run, step by step, at the modelled pace."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.rehearsed_engine import rehearsed

from macroserve.core.request import Slo
from macroserve.engine.rehearsal import Rehearsal
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment
from macroserve.sim.hardware.devices import L20
from macroserve.sim.hardware.host import Host
from macroserve.sim.hardware.links import PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.hardware.step_time import StepTime
from macroserve_lab.bench.peers.rehearsed import Rehearsed

prepare_environment()

from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.output import SchedulerOutput  # noqa: E402

from macroserve.engine.vllm.scheduler import MacroserveScheduler  # noqa: E402
from macroserve_lab.dry_run import DryRun  # noqa: E402

pytestmark = pytest.mark.integration

MODEL = Rehearsed("L20-48GB", "CodeLlama-34B", tensor_parallel=4, scale=1.0, seed=0)
LENGTHS = [(3000, 20), (10, 40), *((300 + 70 * number, 25) for number in range(12))]
"""Tokens of each prompt and answer."""

Batch = tuple[list[tuple[int, int]], int, int]
"""Prefills with the tokens before them, number of decodes, tokens that these attend to."""


@pytest.fixture(scope="module")
def settings() -> EngineSettings:
    return replace(MODEL.settings(Slo(600.0, 60.0)), strategy="vllm")


def load_of(output: SchedulerOutput) -> Batch:
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    prefills = [(num, computed[i]) for i, num in output.num_scheduled_tokens.items() if num > 1]
    decodes = [computed[i] + 1 for i, num in output.num_scheduled_tokens.items() if num == 1]
    return prefills, len(decodes), sum(decodes)


def dry_batches(settings: EngineSettings, scheduler: type) -> list[Batch]:
    """Return the batches of the scheduler without an engine, with the sizes of an L20."""
    sizes = replace(
        settings,
        rehearse=None,
        tensor_parallel=1,
        block_size=16,
        max_batch_tokens=2048,
        max_num_seqs=256,
        args={"async_scheduling": True},
    )
    run = DryRun(sizes, scheduler)
    for num_prompt_tokens, num_tokens in LENGTHS:
        run.add(num_prompt_tokens, num_tokens)
    batches: list[Batch] = []
    schedule = run._scheduler.schedule

    def noting(*args: Any) -> SchedulerOutput:
        output = schedule(*args)
        if output.total_num_scheduled_tokens:
            batches.append(load_of(output))
        return output

    run._scheduler.schedule = noting
    run.run_out()
    return batches


@pytest.mark.parametrize("scheduler", [MacroserveScheduler, AsyncScheduler], ids=["ours", "vLLM's"])
def test_rehearsed_batches_are_those_of_a_dry_run(
    settings: EngineSettings, scheduler: type, tmp_path: Path
) -> None:
    requests = [
        {"prompt": [number] * num_prompt, "num_tokens": num_tokens}
        for number, (num_prompt, num_tokens) in enumerate(LENGTHS)
    ]
    fast = Rehearsal(device="L20-48GB", scale=0.1)
    is_stock = scheduler is AsyncScheduler
    run = rehearsed(settings, requests, tmp_path, fast, is_stock=is_stock)
    found = [
        ([tuple(each) for each in step["prefills"]], step["decodes"], step["context"])
        for step in run.steps
    ]
    assert found == dry_batches(settings, scheduler)


def test_single_stream_has_the_modelled_cache_and_time_per_token(
    settings: EngineSettings, tmp_path: Path
) -> None:
    even = Rehearsal(device="L20-48GB", noise=0.0)
    run = rehearsed(settings, [{"prompt": [5] * 1100, "num_tokens": 60}], tmp_path, even)
    shape = replace(MODELS["CodeLlama-34B"], tensor_parallel=4)
    expected = StepTime(shape, L20, PCIE_4, Host(0.0, 0.0)).seconds([], 1, 1130)
    ends = [step["start"] + step["step_s"] + step["late_s"] for step in run.steps[2:]]
    # 33.74 billion weights, and keys and values of 48 layers of 8 heads of 128, all of 2 bytes.
    left_bytes = (0.92 * 48 - 2) * 2**30 - 2 * 33.74e9 / 4
    block_bytes = 16 * 2 * 2 * 48 * 8 * 128 / 4
    assert run.settings["num_blocks"] == pytest.approx(left_bytes / block_bytes, rel=0.01)
    assert median(b - a for a, b in pairwise(ends)) == pytest.approx(expected, rel=0.02)
