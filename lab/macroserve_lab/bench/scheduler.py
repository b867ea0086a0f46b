"""Time one decision of the instance scheduler."""

from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from time import perf_counter

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.core.status import Pool
from macroserve.core.strategies import strategy

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

    Each time a response ends and requests arrive, so that every decision is a full one.
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
