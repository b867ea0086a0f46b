"""Compare steps with those of vLLM's scheduler: their CPU time, and their number with speculative
decoding and in a pipeline."""

from dataclasses import replace
from random import Random
from statistics import median

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.scheduler import MacroserveScheduler
from macroserve_lab.bench.quickstart import NEVER_LATE
from macroserve_lab.dry_run import DryRun, without_collections

SIZES = ((64, 0), (64, 500), (256, 0), (256, 500))
"""(decoding, waiting) requests."""
NUM_ROUNDS = 8
NUM_STEPS = 20
"""Steps of each scheduler in a round."""
PROMPT_TOKENS, MAX_NEW_TOKENS = 64, 3000
SLO = Slo(ttft_s=600.0, tpot_s=1.0)
NUM_DRAFTS = 3
NUM_SPECULATING = 200
"""Number of requests with drafted tokens, of which 64 run at a time."""


def measure(
    settings: EngineSettings, sizes: tuple[tuple[int, int], ...] = SIZES
) -> dict[str, float]:
    """Return, for each size, the milliseconds of ``schedule`` and ``update_from_output`` in vLLM's
    AsyncScheduler and in ours, their ratio, and the share of ours that were scheduled ahead; the
    least share as ``engine.async.ahead``.

    Both run alternately; the ratio is that of a round's medians, in the median round.
    """
    figures: dict[str, float] = {}
    for num_decoding, num_waiting in sizes:
        enough = enlarged(settings, num_decoding)
        stock = filled(DryRun(enough, AsyncScheduler), num_decoding, num_waiting)
        ours = filled(DryRun(enough, MacroserveScheduler), num_decoding, num_waiting)
        without_collections()
        rounds = [(_median_s(stock), _median_s(ours)) for _ in range(NUM_ROUNDS)]
        name = f"{num_decoding}_{num_waiting}"
        figures[f"engine.stock_step_ms.{name}"] = 1e3 * median(theirs for theirs, _ in rounds)
        figures[f"engine.step_ms.{name}"] = 1e3 * median(own for _, own in rounds)
        figures[f"engine.ahead.{name}"] = ours.ahead
        figures[f"engine.step_cpu_ratio.{name}"] = median(own / theirs for theirs, own in rounds)
    ahead = [share for name, share in figures.items() if name.startswith("engine.ahead.")]
    return {"engine.async.ahead": min(ahead), **figures}


def measure_speculation(settings: EngineSettings) -> dict[str, float]:
    """Return the number of our scheduler's steps for some requests with drafted tokens, divided by
    that of vLLM's."""
    num_steps: list[int] = []
    for scheduler in (MacroserveScheduler, AsyncScheduler):
        run = DryRun(speculating(enlarged(settings, 64)), scheduler)
        for number in range(NUM_SPECULATING):
            run.add(PROMPT_TOKENS + number % 7 * PROMPT_TOKENS, 20 + number % 11 * 10)
        num_steps.append(run.run_out())
    return {"engine.spec.steps_ratio": num_steps[0] / num_steps[1]}


def enlarged(settings: EngineSettings, max_num_seqs: int) -> EngineSettings:
    """Return settings with ``max_num_seqs``, long responses, loose targets and a prefix cache."""
    return replace(
        settings,
        slo=SLO,
        max_num_seqs=max_num_seqs,
        prefix_caching="On",
        max_batch_tokens=8192,
        max_model_len=PROMPT_TOKENS + MAX_NEW_TOKENS,
    )


def speculating(settings: EngineSettings) -> EngineSettings:
    """Return settings of an engine whose model drafts for itself."""
    draft = {"method": "draft_model", "model": settings.model, "num_speculative_tokens": NUM_DRAFTS}
    return replace(settings, args={"speculative_config": draft})


def filled(run: DryRun, num_decoding: int, num_waiting: int) -> DryRun:
    """Let requests decode, and others wait for their seats."""
    for _ in range(num_decoding):
        run.add(PROMPT_TOKENS, MAX_NEW_TOKENS)
    while run.num_decoding < num_decoding:
        run.step()
    for _ in range(num_waiting):
        run.add(PROMPT_TOKENS, MAX_NEW_TOKENS)
    return run


def _median_s(run: DryRun) -> float:
    return median(run.step() for _ in range(NUM_STEPS))


NUM_STAGES = 2
NUM_STAGED = 200
MAX_STAGED_PROMPT_TOKENS, MAX_STAGED_NEW_TOKENS = 400, 200


def measure_pipeline(settings: EngineSettings, num_requests: int = NUM_STAGED) -> dict[str, float]:
    """Return the number of our steps over vLLM's, including empty ones, in which stages idle.

    All requests arrive at once, and prompts are computed in batches of 512 tokens.
    """
    settings = replace(
        settings,
        pipeline_parallel=NUM_STAGES,
        strategy="unified",
        slo=NEVER_LATE,
        max_batch_tokens=512,
        hybrid_cache="Off",
        prefix_caching="Off",
    )
    stock, ours = (
        _pipeline_steps(DryRun(settings, scheduler), num_requests)
        for scheduler in (Scheduler, MacroserveScheduler)
    )
    return {f"engine.pp{NUM_STAGES}.steps_ratio": ours / stock}


def _pipeline_steps(run: DryRun, num_requests: int) -> int:
    random = Random(1)
    for _ in range(num_requests):
        run.add(
            random.randint(20, MAX_STAGED_PROMPT_TOKENS), random.randint(1, MAX_STAGED_NEW_TOKENS)
        )
    return run.run_out()
