"""Target number of instances of a MacroInstance, with a reason.

The target rises as soon as an alert reports missed latency targets or a simulation predicts them.
It falls once simulations have found fewer instances sufficient for a whole window without a break.
Without information it stays.

The rule is the stabilization of a HorizontalPodAutoscaler: the highest recommendation in the window
counts for scaling down, the lowest for scaling up. Its state can be lost: ``resume`` rebuilds it
from the target and its history, and at worst the next change waits one more window.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

START_S = 60.0
"""Start time of an instance, seconds, until it has been measured."""

SETTLE_S = 60.0
"""Seconds for which all instances must serve before an alert, which covers the last minute, may add
another."""

PATIENCE_S = 120.0
"""Extra seconds to wait for added instances that take longer to start than usual."""

GAP_S = 60.0
"""Seconds without a recommendation after which the window starts anew."""

REBOUND_S = 600.0
"""Lowering the target was a mistake if it is raised again within this many seconds."""

REMEMBERED_S = 3600.0
"""How long such mistakes count, seconds."""
MOST_DOUBLINGS = 3
"""Maximum doublings of the window for scaling down, one per mistake."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the target, and how long a recommendation must hold before it is applied."""

    least: int
    most: int
    up_s: float
    """Window for scaling up, seconds."""
    down_s: float
    """Window for scaling down, seconds."""


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """Instances that a MacroInstance needs, as estimated by simulations of its load."""

    requests_per_s: float
    """Expected arrival rate plus waiting requests, requests per second."""
    enough: int
    """Instances that keep the attainment under the expected load; at most twice the current
    number."""
    survivors: int
    """Fewest instances that also keep it under the load of the last minute with some headroom."""
    certain: bool = True
    """Whether the simulations ran long enough to be reliable."""
    helps: bool = True
    """Whether more instances would raise the attainment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignals:
    """The load at one moment, as the autoscaler sees it."""

    ready: int
    """Instances that serve."""
    alert: str | None = None
    """Name of a firing alert that asks for more instances."""
    need: CapacityEstimate | None = None
    """None until the first simulation since the last change ends."""
    idle: bool = False
    """Whether no request arrived in the last minutes, and none waits or runs."""
    below_target: bool = False
    """Whether the attainment over the last minute is below its target."""
    unknown: str | None = None
    """Why the load is unknown, a sentence; None if it is known."""
    alerts_missing: str | None = None
    """Why alerts may be missing, a sentence; None if they arrive."""
    start_s: float = START_S
    """Start time of an instance, seconds."""
    response_s: float = 0.0
    """Duration of a response, seconds: an alert, which counts ended requests, lags behind arrivals
    by this much."""


@dataclass(frozen=True, slots=True)
class TargetChange:
    at_s: float
    """Seconds on the clock of ``now``."""
    before: int
    after: int


def is_rebound(lower: TargetChange, raised: TargetChange) -> bool:
    """Return whether the target was raised soon after the preceding change had lowered it."""
    return (
        lower.after < lower.before
        and raised.after > raised.before
        and raised.at_s - lower.at_s <= REBOUND_S
    )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommendation that held unchanged over an interval of time."""

    since_s: float
    until_s: float
    up_to: int
    """Recommended instances when scaling up."""
    down_to: int
    """Recommended instances when scaling down."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """State of the autoscaler."""

    target: int
    changes: tuple[TargetChange, ...] = ()
    """Changes of the target, oldest first."""
    recommendations: tuple[Recommendation, ...] = ()
    """Recommendations within the longest window, oldest first."""
    serving_since_s: float | None = None
    """Since when the target number of instances serves; None while fewer do."""


@dataclass(frozen=True, slots=True)
class TargetDecision:
    """A target number of instances, with its reason."""

    target: int
    reason: str
    able: bool = True
    """Whether nothing keeps the target from its recommended value."""


def resume(target: int, changes: Iterable[TargetChange], now: float) -> Scaling:
    """Return the state after a restart, or after a period without recommendations."""
    return Scaling(target, tuple(changes), (Recommendation(now, now, target, target),))


def decide(
    scaling: Scaling, limits: Limits, signals: LoadSignals, now: float
) -> tuple[TargetDecision, Scaling]:
    """Return the target from now on, and the state for the next call."""
    current = scaling.target
    within = max(limits.least, min(current, limits.most))
    if within != current:
        bounds = f"{limits.least} to {limits.most}"
        return _changed(scaling, within, f"spec.autoscaling's bounds are {bounds} instances.", now)
    if signals.unknown:
        decision = TargetDecision(
            current, f"{signals.unknown} The target stays {current}.", able=False
        )
        return decision, resume(current, scaling.changes, now)
    scaling = _with_serving(scaling, signals.ready, now)
    up_to, why_up = _recommended_up(scaling, limits, signals, now)
    down_to, why_down = _recommended_down(scaling, limits, signals)
    scaling = _with_recommendation(scaling, up_to, down_to, limits, now)
    window_s = _down_window_s(scaling, limits, now)
    grow_to = min([up_to, *(r.up_to for r in _within(scaling, limits.up_s, now))])
    shrink_to = max([down_to, *(r.down_to for r in _within(scaling, window_s, now))])
    if grow_to > current:
        return _changed(scaling, grow_to, why_up, now)
    if up_to > current:
        reason = f"{why_up} Instances are added if this holds for {limits.up_s:.0f} s."
        return TargetDecision(current, reason, able=False), scaling
    if shrink_to < current:
        return _changed(scaling, shrink_to, f"{why_down} This has held for {window_s:.0f} s.", now)
    if down_to < current:
        reason = f"{why_down} Instances are removed if this holds for {window_s:.0f} s."
        return TargetDecision(current, reason, able=False), scaling
    stuck = signals.alerts_missing or (signals.alert and current == limits.most)
    return TargetDecision(current, why_down, able=not stuck), scaling


def _recommended_up(
    scaling: Scaling, limits: Limits, signals: LoadSignals, now: float
) -> tuple[int, str]:
    """Return the recommended instances when scaling up, at least the current number, and why."""
    current, need, alert = scaling.target, signals.need, signals.alert
    helps = need is None or need.helps
    up_to, why = current, ""
    if need and helps and need.enough > current:
        up_to = need.enough
        why = f"A load of {need.requests_per_s:.3g} requests/s needs {up_to} instances."
    if alert and helps and not signals.idle and _settled(scaling, signals, now):
        up_to = max(up_to, current + 1)
        why = f"{alert} is firing with {_counted(current)}. {why}".rstrip()
    return min(up_to, 2 * current, limits.most), why


def _recommended_down(scaling: Scaling, limits: Limits, signals: LoadSignals) -> tuple[int, str]:
    """Return the recommended instances when scaling down, at most the current number, and why."""
    current, need = scaling.target, signals.need
    if signals.alerts_missing:
        return current, f"{signals.alerts_missing} No instance is removed."
    if signals.idle:
        enough = _counted(limits.least, "is enough", "are enough")
        return limits.least, f"There were no recent requests: {enough}."
    if signals.alert:
        why = "which need time to take effect"
        if need and not need.helps:
            why = "and more would not help"
        elif current == limits.most:
            why = "the maximum"
        return current, f"{signals.alert} is firing with {_counted(current)}, {why}."
    if signals.below_target:
        return current, "Attainment is below its target: no instance is removed."
    if current == limits.least:
        return current, f"{current} is the minimum."
    if need is None:
        return current, "The load has not been simulated yet: no instance is removed."
    if need.survivors >= current:
        return (
            current,
            f"A simulation of the load shows that {_counted(current, 'is needed', 'are needed')}.",
        )
    down_to = max(need.survivors, limits.least)
    enough = _counted(down_to, "is enough", "are enough")
    if need.certain:
        return down_to, f"A simulation of the last minute shows that {enough}."
    return current - 1, f"Incomplete simulations show that {enough}: one is removed."


def _counted(num: int, one: str = "", more: str = "") -> str:
    return f"1 instance {one}".rstrip() if num == 1 else f"{num} instances {more}".rstrip()


def _with_serving(scaling: Scaling, ready: int, now: float) -> Scaling:
    """Update since when the target number of instances serves."""
    since_s = scaling.serving_since_s
    if ready < scaling.target:
        return replace(scaling, serving_since_s=None)
    return scaling if since_s is not None else replace(scaling, serving_since_s=now)


def _settled(scaling: Scaling, signals: LoadSignals, now: float) -> bool:
    """Return whether the instances added last have had time to take effect."""
    if not scaling.changes or scaling.changes[-1].after < scaling.changes[-1].before:
        return True
    if scaling.serving_since_s is None:
        return now - scaling.changes[-1].at_s >= signals.start_s + PATIENCE_S
    return now - scaling.serving_since_s >= SETTLE_S + signals.response_s


def _changed(
    scaling: Scaling, target: int, reason: str, now: float
) -> tuple[TargetDecision, Scaling]:
    recent = [change for change in scaling.changes if now - change.at_s <= REMEMBERED_S + REBOUND_S]
    changes = (*recent, TargetChange(now, scaling.target, target))
    return TargetDecision(target, reason), resume(target, changes, now)


def _with_recommendation(
    scaling: Scaling, up_to: int, down_to: int, limits: Limits, now: float
) -> Scaling:
    """Add a recommendation and drop those older than every window."""
    last = scaling.recommendations[-1]
    if now - last.until_s > GAP_S:
        since_s = scaling.serving_since_s
        return replace(resume(scaling.target, scaling.changes, now), serving_since_s=since_s)
    if (last.up_to, last.down_to) == (up_to, down_to):
        recommendations = (*scaling.recommendations[:-1], replace(last, until_s=now))
    else:
        recommendations = (*scaling.recommendations, Recommendation(now, now, up_to, down_to))
    longest_s = max(limits.up_s, limits.down_s * 2**MOST_DOUBLINGS)
    kept = tuple(r for r in recommendations if now - r.until_s <= longest_s)
    return replace(scaling, recommendations=kept)


def _within(scaling: Scaling, window_s: float, now: float) -> Iterator[Recommendation]:
    return (r for r in scaling.recommendations if now - r.until_s < window_s)


def _down_window_s(scaling: Scaling, limits: Limits, now: float) -> float:
    """Return the window for scaling down, seconds, which recent mistakes lengthen so that a wrong
    model does not make the target oscillate."""
    num_rebounds = sum(
        is_rebound(lower, raised) and now - raised.at_s <= REMEMBERED_S
        for lower, raised in pairwise(scaling.changes)
    )
    return limits.down_s * 2 ** min(num_rebounds, MOST_DOUBLINGS)
