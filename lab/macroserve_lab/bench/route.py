"""Time one routing decision, in the worst case."""

import statistics
import time
from collections.abc import Sequence

from macroserve.core.request import Request, Slo
from macroserve.core.routing.decision import RouteReason, RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.routing.prefixes import num_keys
from macroserve.core.status import InstanceStatus, Pool
from macroserve.core.strategies import strategy

NUM_DECISIONS = 300
SLO = Slo(ttft_s=1.0, tpot_s=0.1)
NUM_PROMPT_TOKENS = 8192
SHARED = tuple(range(num_keys(NUM_PROMPT_TOKENS) - 1))


def measure(sizes: Sequence[int] = (16, 64, 256)) -> dict[str, float]:
    """Return the median microseconds of ``CellLedger.assign`` by number of instances, for prompts
    without shared prefixes and for long ones with prefixes cached at every instance."""
    return {
        **{f"route.{size}_us": _median_us(size, ()) for size in sizes},
        **{f"route.{size}_prefixes_us": _median_us(size, SHARED) for size in sizes},
    }


def _median_us(num_instances: int, shared: tuple[int, ...]) -> float:
    """Return the median of prompts with the keys ``shared`` and, if any, another unique key."""
    ledger = CellLedger(strategy("unified"))
    for i in range(num_instances):
        name = f"instance-{i}"
        ledger.add(name, Pool.HP if i % 3 == 2 else Pool.LP, max_num_seqs=128)
        ledger.observe(name, _exhausted(0, admitted=""), 0.0)
        others = frozenset(view.name for view in ledger.views) - {name}
        first = Request(f"first-{i}", 0.0, NUM_PROMPT_TOKENS, 256, SLO)
        assert ledger.assign(RouteRequest(first, 256, exclude=others, prefix=shared), 0.0).instance
    elapsed_s = []
    for n in range(1, NUM_DECISIONS + 1):
        now = float(n)
        for view in ledger.views:
            ledger.observe(view.name, _exhausted(n, admitted=f"request-{n - 1}"), now)
        request = Request(f"request-{n}", now, NUM_PROMPT_TOKENS, 256, SLO)
        prefix = (*shared, -n) if shared else ()
        start = time.perf_counter()
        decision = ledger.assign(RouteRequest(request, 256, prefix=prefix), now)
        elapsed_s.append(time.perf_counter() - start)
        assert decision.reason is RouteReason.LEAST_LOAD and decision.late
    return statistics.median(elapsed_s) * 1e6


def _exhausted(seq: int, admitted: str) -> InstanceStatus:
    """Return a status for which routing examines everything: HP offers a ticket, only the last of
    the three constraints is violated, and the first token is late on every instance."""
    return InstanceStatus(
        seq=seq,
        num_running=32,
        num_decoding=32,
        waiting_prefill_s=2.0,
        saved_tpot_mean_s=0.5,
        saved_tpot_p10_s=0.5,
        decode_step_s=0.03,
        prefill_s_per_token=1e-4,
        num_blocks=64,
        free_blocks=40,
        admitted=(admitted,),
    )
