"""Time the instance scheduler in a steady decode phase, with standing plans and without."""

from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

from macroserve.core.batch import BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.status import Pool
from macroserve.core.strategies import strategy
from macroserve.core.strategy import Strategy
from macroserve_lab.bench.scheduler import L20, LLAMA_30B_TP4

SLO = Slo(ttft_s=15.0, tpot_s=0.1)
NUM_DECODING = 64
NUM_WAITING = 200
"""Requests beyond those that decode; some of them have their prompt computed."""
RESPONSE_TOKENS = 1000
BLOCKS_EACH = 75
"""Blocks for a prompt of 40 tokens and a padded response."""
PROMPT_TOKENS = 40


def measure(num_steps: int = 300) -> dict[str, float]:
    """Return the median microseconds per token that ``econoserve`` takes to schedule a step and to
    take its result in, while 64 responses of one length decode: with standing plans, with a
    decision in each step, and the ratio of the two; alone, and with a queue for their memory."""
    figures: dict[str, float] = {}
    for name, num_waiting in (("steady", 0), ("steady_queue", NUM_WAITING)):
        standing = strategy("econoserve")
        schedulers = [_filled(each, num_waiting) for each in (standing, _deciding(standing))]
        elapsed_s: list[list[float]] = [[], []]
        for _ in range(num_steps):
            for scheduler, seen_s in zip(schedulers, elapsed_s, strict=True):
                seen_s.append(_step_s(scheduler) / len(scheduler.running.decoding))
        standing_us, deciding_us = (1e6 * median(seen_s) for seen_s in elapsed_s)
        figures[f"scheduler.{name}_us_per_token"] = standing_us
        figures[f"scheduler.{name}_deciding_us_per_token"] = deciding_us
        figures[f"scheduler.{name}_ratio"] = standing_us / deciding_us
    return figures


def _deciding(standing: Strategy) -> Strategy:
    """Return the strategy with a policy whose plans hold for one step."""

    def decide(*args: Any) -> Any:
        return standing.batch(*args)._replace(repeatable=False)

    return replace(standing, batch=decide)


def _filled(chosen: Strategy, num_waiting: int) -> InstanceScheduler:
    """Return a scheduler whose memory is full of responses that have just begun."""
    scheduler = InstanceScheduler(
        InstanceConfig(
            strategy=chosen,
            pool=Pool.LP,
            slo=SLO,
            num_blocks=int(1.05 * NUM_DECODING * BLOCKS_EACH),
            block_size=16,
            max_num_seqs=4 * NUM_DECODING,
            max_batch_tokens=2048,
            max_model_len=4096,
        ),
        LatencyModel(LLAMA_30B_TP4, L20),
    )
    for index in range(NUM_DECODING + num_waiting):
        request = Request(
            f"r{index}",
            0.0,
            PROMPT_TOKENS,
            2 * RESPONSE_TOKENS,
            SLO,
            expected_tokens=RESPONSE_TOKENS,
        )
        scheduler.add_request(request, 0.0)
    while scheduler.schedule(0.0).prefills:
        _step_s(scheduler)
    assert len(scheduler.running.decoding) == NUM_DECODING, "the pool holds as many"
    return scheduler


def _step_s(scheduler: InstanceScheduler) -> float:
    """Run a step in the predicted time; return the seconds that the scheduler took for it."""
    now = scheduler.running.decoding.last_step_s
    started_s = perf_counter()
    batch = scheduler.schedule(now)
    decided_s = perf_counter()
    prefilled = {prefill.request_id: prefill.num_tokens for prefill in batch.prefills}
    result = BatchResult(
        batch.predicted_s, prefilled, dict.fromkeys(prefilled, 1), decoded=bool(batch.decodes)
    )
    came_out_s = perf_counter()
    scheduler.update(batch, result, now + batch.predicted_s)
    return perf_counter() - came_out_s + decided_s - started_s
