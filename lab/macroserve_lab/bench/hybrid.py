"""Measure what the hybrid cache gains and costs: concurrent requests in the same pool, and tokens
per second.

Two engines of one model serve the same requests in turns under Apt-Serve's policy, one of them with
keys and values alone, so that a slow minute of the machine meets both.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import median

from macroserve.bench.real_engine import Answer, serve, started
from macroserve.engine.settings import EngineSettings
from macroserve.workload.arrivals import Arrival
from macroserve_lab.bench.quickstart import NEVER_LATE

ROUNDS = 3
BURST = [Arrival(0.0, 200, 60)] * 48
"""Concurrent requests: many more than fit the memory."""

POOL_BYTES = 76 << 20
"""Bytes of the cache: a hundred pages of the small OPT."""


async def measure(settings: EngineSettings, num_rounds: int = ROUNDS) -> dict[str, float]:
    """Return the figures of both engines, and the ratios of hybrid cache to keys and values alone.

    hybrid.running_ratio: ratio of the concurrent requests.
    hybrid.throughput_ratio: ratio of the tokens per second.

    Raises RuntimeError where the cache is off for the model, with the reason.
    """
    settings = replace(settings, strategy="aptserve", slo=NEVER_LATE, kv_cache_bytes=POOL_BYTES)
    running: dict[str, list[float]] = {"kv": [], "hybrid": []}
    rates: dict[str, list[float]] = {"kv": [], "hybrid": []}
    async with started(settings) as hybrid:
        if not hybrid.shape.hybrid_cache.startswith("on"):
            raise RuntimeError(f"the hybrid cache is {hybrid.shape.hybrid_cache}")
        async with started(replace(settings, hybrid_cache="Off")) as kv:
            for round_, (name, engine) in product(
                range(num_rounds), (("kv", kv), ("hybrid", hybrid))
            ):
                answers = await serve(engine, BURST, NEVER_LATE, f"round-{round_}")
                running[name].append(at_a_time(answers))
                rates[name].append(tokens_per_s(answers))
            num_pages = kv.shape.num_blocks
    return {
        "hybrid.running_ratio": _ratio(running),
        "hybrid.throughput_ratio": _ratio(rates),
        "hybrid.pages": num_pages,
        **{f"hybrid.running.{name}": median(values) for name, values in running.items()},
        **{f"hybrid.tokens_per_s.{name}": median(values) for name, values in rates.items()},
    }


def at_a_time(answers: Sequence[Answer]) -> float:
    """Return the mean number of concurrent requests between first and last token, until the last
    begins."""
    last_s = max(answer.tokens_s[0] for answer in answers)
    return sum(min(a.tokens_s[-1], last_s) - a.tokens_s[0] for a in answers) / last_s


def tokens_per_s(answers: Sequence[Answer]) -> float:
    num_tokens = sum(len(answer.tokens_s) for answer in answers)
    return num_tokens / max(answer.tokens_s[-1] for answer in answers)


def _ratio(values: dict[str, list[float]]) -> float:
    return median(
        ours / theirs for ours, theirs in zip(values["hybrid"], values["kv"], strict=True)
    )
