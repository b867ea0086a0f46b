"""Time the instance scheduler: one decision, and a steady decode phase."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.core.strategies import strategy
from macroserve.core.strategy import Strategy

LLAMA_30B_TP4 = ModelShape(
    num_layers=60,
    hidden_size=6656,
    num_heads=52,
    num_kv_heads=52,
    head_dim=128,
    intermediate_size=17920,
    vocab_size=32000,
    tensor_parallel=4,
)
L20 = DeviceShape(flops_per_s=119.5e12, bytes_per_s=864e9)
SLO = Slo(ttft_s=15.0, tpot_s=0.1)
NUM_DECODING = 64
PROMPT_TOKENS = (40, 90, 150, 220, 400, 800, 1600)
MAX_NEW_TOKENS = 2000
BLOCK_SIZE = 16


def measure(
    sizes: tuple[int, ...] = (100, 400, 1600, 2000),
    strategy_name: str = "unified",
    num_decisions: int = 200,
) -> dict[str, float]:
    """Return the median milliseconds of ``schedule()`` by the number of waiting requests, with 64
    decoding.

    Before each decision a response ends and requests arrive, so that no plan is repeated.
    """
    return {
        f"scheduler.{size}_ms": 1e3 * _median_decision_s(size, strategy_name, num_decisions)
        for size in sizes
    }


def _median_decision_s(num_waiting: int, strategy_name: str, num_decisions: int) -> float:
    model = LLAMA_30B_TP4
    scheduler = InstanceScheduler(
        InstanceConfig(
            strategy=strategy(strategy_name),
            pool=Pool.LP,
            slo=SLO,
            num_blocks=80 * NUM_DECODING,
            block_size=BLOCK_SIZE,
            max_num_seqs=2 * NUM_DECODING,
            max_batch_tokens=2048,
            max_model_len=4096,
            hidden_states_per_block=BLOCK_SIZE * model.kv_size // model.hidden_size,
        ),
        LatencyModel(model, L20),
    )
    requests, now = _requests(), 0.0
    while scheduler.status(now).num_decoding < NUM_DECODING:
        scheduler.add_request(next(requests)(now), now)
        now = _run(scheduler, scheduler.schedule(now), now)
    elapsed_s: list[float] = []
    while len(elapsed_s) < num_decisions:
        for _ in range(scheduler.status(now).num_waiting, num_waiting):
            scheduler.add_request(next(requests)(now), now)
        started = perf_counter()
        batch = scheduler.schedule(now)
        elapsed_s.append(perf_counter() - started)
        now = _run(scheduler, batch, now)
    return median(elapsed_s)


def _requests() -> Iterator[Callable[[float], Request]]:
    """Return prompts of mixed lengths that have waited for up to half their TTFT target."""
    for index in count():
        prompt = PROMPT_TOKENS[index % len(PROMPT_TOKENS)]
        age_s = SLO.ttft_s * (index % 31) / 62
        yield lambda now, i=index, p=prompt, a=age_s: Request(
            f"r{i}", now - a, p, MAX_NEW_TOKENS, SLO
        )


def _run(scheduler: InstanceScheduler, batch: Batch, now: float) -> float:
    """Run a batch in the predicted time; the oldest requests end while too many decode."""
    now += batch.predicted_s
    surplus = max(0, scheduler.status(now).num_decoding - NUM_DECODING)
    result = BatchResult(
        batch.predicted_s,
        {prefill.request_id: prefill.num_tokens for prefill in batch.prefills},
        finished=batch.decodes[:surplus],
        decoded=1,
    )
    scheduler.update(batch, result, now)
    return now


# A steady decode phase, with plans that are repeated and without.

NUM_WAITING = 200
"""Requests in addition to the decoding ones; some have a computed prompt."""
RESPONSE_TOKENS = 1000
BLOCKS_EACH = 75
"""Blocks for a prompt of 40 tokens and a padded response."""
STEADY_PROMPT_TOKENS = 40


def measure_steady(num_steps: int = 300) -> dict[str, float]:
    """Return the median microseconds per token of ``econoserve``'s scheduling and updates while 64
    responses of one length decode: with repeated plans, with a decision in each step, and their
    ratio; without and with a queue for their memory."""
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
            STEADY_PROMPT_TOKENS,
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
