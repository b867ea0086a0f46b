"""Derivation of ``LoadSignals`` from alerts, reported load and cells' views."""

from collections.abc import Collection, Iterable, Mapping

from macroserve.core.scaling.autoscale import START_S, CapacityEstimate, LoadSignals
from macroserve.core.scaling.load import LoadReport
from macroserve.core.status import CellView, Ended

ATTAINMENT_LOW = "MacroserveSLOAttainmentLow"
QUEUES_LATE = "MacroserveQueuesLate"
CALLS_FOR_MORE = (ATTAINMENT_LOW, QUEUES_LATE)
"""Names of the alerts that ask for more instances."""

STALE_S = 60.0
"""Age beyond which a load measurement is out of date, seconds."""

FEWEST_FINISHED = 10
"""Minimum ended requests for a meaningful attainment."""


def load_signals(
    *,
    ready: int,
    firing: Collection[str],
    alerts_missing: str | None,
    unknown: str | None,
    idle: bool,
    below_target: bool,
    need: CapacityEstimate | None,
    start_s: float = START_S,
    response_s: float = 0.0,
) -> LoadSignals:
    """Return the ``LoadSignals``, with names of alerts that fire for the MacroInstance."""
    alert = next((name for name in CALLS_FOR_MORE if name in firing), None)
    return LoadSignals(
        ready=ready,
        alert=alert,
        need=None if idle or unknown else need,
        idle=idle,
        below_target=below_target,
        unknown=unknown,
        alerts_missing=alerts_missing,
        start_s=start_s,
        response_s=response_s,
    )


def response_s(load: LoadReport, tpot_s: float) -> float:
    """Return the mean duration of a response at the TPOT target, seconds; 0 without requests."""
    num_requests = sum(bucket.requests for bucket in load.buckets)
    num_tokens = sum(bucket.output_tokens for bucket in load.buckets)
    return tpot_s * num_tokens / num_requests if num_requests else 0.0


def uncounted(load: LoadReport) -> str | None:
    """Return why the present load is unknown, a sentence; None if ``load`` is recent."""
    if not load.buckets:
        return "The load has not been measured yet."
    if load.buckets[0].age_s > STALE_S:
        return "The last measurement of the load is too old."
    return None


def is_idle(load: LoadReport, cells: Iterable[CellView]) -> bool:
    """Return whether no request came in the minutes of ``load``, and none waits or runs."""
    num_asked = sum(bucket.requests for bucket in load.buckets)
    return not num_asked and not any(cell.num_waiting or cell.num_running for cell in cells)


def is_below_target(ended: Mapping[str, Ended], goals: Mapping[str, float]) -> bool:
    """Return whether attainment is below its goal in any SLO class that has one.

    ended: requests that ended in the last minute, by class.
    goals: target attainment by class.
    """
    return any(
        found.finished >= FEWEST_FINISHED and found.attained < goals[name] * found.finished
        for name, found in ended.items()
        if name in goals
    )
