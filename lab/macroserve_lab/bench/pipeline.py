"""Count the steps that a pipeline's scheduler needs for a load: vLLM's own and ours."""

from dataclasses import replace
from random import Random

from vllm.v1.core.sched.scheduler import Scheduler

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.scheduler import MacroserveScheduler
from macroserve_lab.bench.quickstart import NEVER_LATE
from macroserve_lab.dry_run import DryRun

NUM_STAGES = 2
NUM_REQUESTS = 200
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS = 400, 200


def measure(settings: EngineSettings, num_requests: int = NUM_REQUESTS) -> dict[str, float]:
    """Return the steps of ours over vLLM's, empty ones too, in which the stages idle.

    All requests come at once, and prompts are computed in batches of 512 tokens.
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
        _num_steps(DryRun(settings, scheduler), num_requests)
        for scheduler in (Scheduler, MacroserveScheduler)
    )
    return {f"engine.pp{NUM_STAGES}.steps_ratio": ours / stock}


def _num_steps(run: DryRun, num_requests: int) -> int:
    random = Random(1)
    for _ in range(num_requests):
        run.add(random.randint(20, MAX_PROMPT_TOKENS), random.randint(1, MAX_NEW_TOKENS))
    return run.run_out()
