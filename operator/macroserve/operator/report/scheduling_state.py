"""``status.scheduling`` and the figures of cells.

Figures have two digits and times are not ages, so that they stay equal while nothing happens.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from macroserve.api.messages import CellReport
from macroserve.api.scheduling_state import (
    CellState,
    InstanceState,
    cell_states,
    recent_refusals,
)
from macroserve.api.units import format_seconds
from macroserve.operator.k8s.times import parsed, rfc3339
from macroserve.operator.observe.observation import Observation

MAX_INSTANCES = 64
"""Most instances in the status, which people read and etcd stores."""
MAX_REASONS = 16
SAME_PHASE = timedelta(seconds=2)
"""Tolerance between two computed starts of one phase, due to rounding and heartbeats."""
CELL_FIGURES = (
    "phases",
    "oldestWait",
    "slack",
    "kvUsed",
    "hiddenUsed",
    "prefixCacheHitRatio",
    "stepTime",
    "predictedStepTime",
)


def scheduling(observation: Observation) -> dict[str, Any] | None:
    """Return the state of each instance, and the refusals of the last minute by reason.

    None while the head does not answer. Instances are sorted by cell and name; those beyond
    MAX_INSTANCES are only counted. Empty lists are left out.
    """
    if observation.report is None:
        return None
    before = observation.status.get("scheduling", {})
    known = {entry["name"]: entry for entry in before.get("instances", ())}
    cells = cell_states(observation.cells)
    states = [instance for cell in cells for instance in cell.instances]
    refused = recent_refusals(observation.cells)[:MAX_REASONS]
    lists: dict[str, Any] = {
        "instances": [
            _instance(state, known.get(state.name, {}), observation.now)
            for state in states[:MAX_INSTANCES]
        ],
        "refusals": [{"reason": reason, "count": num} for reason, num in refused],
    }
    found = {name: entries for name, entries in lists.items() if entries}
    if len(states) > MAX_INSTANCES:
        found["instancesLeftOut"] = len(states) - MAX_INSTANCES
    time = before.get("time")
    if time is None or found != {name: value for name, value in before.items() if name != "time"}:
        time = rfc3339(observation.now)
    return {"time": time, **found}


def cell_figures(report: CellReport) -> dict[str, str]:
    """Return the fields of a cell that show its scheduling state."""
    (state,) = cell_states((report,))
    phases = ", ".join(f"{num} {phase.value}" for phase, num in state.num_in_phase.items())
    return {**({"phases": phases} if phases else {}), **_figures(state)}


def _instance(state: InstanceState, before: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": state.name,
        "cell": state.cell,
        "pool": state.pool.label,
    }
    if state.phase is not None:
        entry["phase"] = state.phase.value
        if state.phase_s is not None:
            began = now - timedelta(seconds=state.phase_s)
            entry["phaseSince"] = _since(began, state.phase.value, before)
    if state.draining:
        entry["draining"] = True
    return {
        **entry,
        "running": state.num_running,
        "waiting": state.num_waiting,
        **_figures(state),
    }


def _since(began: datetime, phase: str, before: Mapping[str, Any]) -> str:
    """Return when a phase began, as in the previous status if it shows the same phase."""
    if before.get("phase") == phase:
        told = str(before.get("phaseSince", ""))
        known = parsed(told)
        if known and abs(began - known) <= SAME_PHASE:
            return told
    return rfc3339(began)


def _figures(state: InstanceState | CellState) -> dict[str, str]:
    """Return the fields that cells and instances share, without empty ones."""
    steps = state.steps
    told = {
        "oldestWait": _duration(state.oldest_wait_s),
        "slack": _duration(state.slack_p10_s),
        "kvUsed": ratio(*state.kv_used),
        "hiddenUsed": ratio(*state.hidden_used) if state.hidden_used.part else None,
        "prefixCacheHitRatio": ratio(*state.hits),
        "stepTime": _duration(steps and steps.measured_s),
        "predictedStepTime": _duration(steps and steps.predicted_s),
    }
    return {field: value for field, value in told.items() if value is not None}


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else format_seconds(seconds)


def ratio(part: int, whole: int) -> str | None:
    """Return a ratio with two decimals, rounded down so that 1.00 means all; None for 0 of 0."""
    return f"{100 * part // whole / 100:.2f}" if whole else None
