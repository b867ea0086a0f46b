"""The autoscaler derives the target number of instances of a MacroInstance, with a reason.

The target rises at once and falls slowly. It rises as soon as an alert says that the latency
targets are missed or a simulation says that they will be. It falls once simulations have said, for
a whole window without a break, that fewer instances are enough. Without information the target
stays.

The rule is the stabilization of a HorizontalPodAutoscaler: of all recommendations in the window the
highest counts for scaling down, the lowest for scaling up. Its memory can be lost: ``resume``
rebuilds it from the target and its history, and at worst the next change waits one more window.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

SETTLE_S = 60.0
"""Seconds after instances were added in which an alert may resolve before it adds another."""

PATIENCE_S = 180.0
"""Longest time, in seconds, to wait for added instances that do not serve yet."""

GAP_S = 60.0
"""Recommendations further apart than this many seconds leave a gap, for which no recommendation is
known."""

REBOUND_S = 600.0
"""A target that had to be raised again within this many seconds after it was lowered was too
low."""

REMEMBERED_S = 3600.0
"""Time for which such mistakes are remembered, seconds."""
MOST_DOUBLINGS = 3
"""Each such mistake doubles the window for scaling down, up to this many times."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits bound the target and set how long a recommendation must hold before it is
    applied."""

    least: int
    """Minimum number of instances."""
    most: int
    """Maximum number of instances."""
    up_s: float
    """Window for scaling up, seconds."""
    down_s: float
    """Window for scaling down, seconds."""


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """Simulations of a MacroInstance's load estimate the instances it needs."""

    requests_per_s: float
    """Expected arrival rate plus the requests that wait, requests per second."""
    enough: int
    """Instances that keep the attainment under the expected load; at most twice the current
    number."""
    survivors: int
    """Fewest instances that also keep it under the busiest minute of the window for scaling
    down."""
    certain: bool = True
    """Whether the simulations ran long enough to be relied on."""
    helps: bool = True
    """Whether more instances raise the attainment at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignals:
    """The signals describe the load at one moment."""

    ready: int
    """Instances that serve."""
    alert: str | None = None
    """Name of a firing alert that asks for more instances."""
    need: CapacityEstimate | None = None
    """The capacity estimate; None before the first simulation since the last change has ended."""
    idle: bool = False
    """Whether no request arrived in the last minutes, and none waits or runs."""
    struggling: bool = False
    """Whether the attainment of the requests that ended in the last minute is below its target."""
    unknown: str | None = None
    """Sentence that tells why the load is unknown; None if it is known."""
    deaf: str | None = None
    """Sentence that tells why an alert might not have arrived; None if alerts arrive."""


@dataclass(frozen=True, slots=True)
class TargetChange:
    """The target changed at ``at_s``, seconds on the clock of ``now``."""

    at_s: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """Between two times the same recommendation held."""

    since_s: float
    """Start, seconds."""
    until_s: float
    """End, seconds."""
    wish: int
    """Recommended instances when scaling up."""
    keep: int
    """Recommended instances when scaling down."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The autoscaler's state holds the target and the inputs of its next change."""

    target: int
    moves: tuple[TargetChange, ...] = ()
    """Changes of the target, oldest first."""
    opinions: tuple[Opinion, ...] = ()
    """Recommendations within the longest window, oldest first."""


@dataclass(frozen=True, slots=True)
class TargetDecision:
    """The autoscaler decided on a target, for a reason."""

    target: int
    """Desired number of instances."""
    reason: str
    able: bool = True
    """Whether no obstacle keeps the target from its recommended value."""


def resume(target: int, moves: Iterable[TargetChange], now: float) -> Scaling:
    """Return the state after a restart, or after a period without recommendations."""
    return Scaling(target, tuple(moves), (Opinion(now, now, target, target),))


def decide(
    scaling: Scaling, limits: Limits, signals: LoadSignals, now: float
) -> tuple[TargetDecision, Scaling]:
    """Return the target from now on, and the state for the next call."""
    held = scaling.target
    within = max(limits.least, min(held, limits.most))
    if within != held:
        bounds = f"{limits.least} to {limits.most}"
        return _move(scaling, within, f"spec.autoscaling's bounds are {bounds} instances.", now)
    if signals.unknown:
        decision = TargetDecision(held, f"{signals.unknown} The target stays {held}.", able=False)
        return decision, resume(held, scaling.moves, now)
    wish, why_wish = _wish(scaling, limits, signals, now)
    keep, why_keep = _keep(scaling, limits, signals)
    scaling = _with_opinion(scaling, wish, keep, limits, now)
    window_s = _down_window_s(scaling, limits, now)
    grow_to = min([wish, *(opinion.wish for opinion in _within(scaling, limits.up_s, now))])
    shrink_to = max([keep, *(opinion.keep for opinion in _within(scaling, window_s, now))])
    if grow_to > held:
        return _move(scaling, grow_to, why_wish, now)
    if wish > held:
        reason = f"{why_wish} That has to hold for {limits.up_s:.0f} s before any are added."
        return TargetDecision(held, reason, able=False), scaling
    if shrink_to < held:
        return _move(scaling, shrink_to, f"{why_keep} That has held for {window_s:.0f} s.", now)
    if keep < held:
        reason = f"{why_keep} That has to hold for {window_s:.0f} s before any are removed."
        return TargetDecision(held, reason, able=False), scaling
    stuck = signals.deaf or (signals.alert and held == limits.most)
    return TargetDecision(held, why_keep, able=not stuck), scaling


def _wish(scaling: Scaling, limits: Limits, signals: LoadSignals, now: float) -> tuple[int, str]:
    """Return the recommended instances when scaling up (the current number if it is enough), and
    why."""
    held, need, alert = scaling.target, signals.need, signals.alert
    helps = need is None or need.helps
    wish, why = held, ""
    if need and helps and need.enough > held:
        wish = need.enough
        why = f"{need.requests_per_s:.3g} requests/s are to be served, which need {wish} instances."
    if alert and helps and not signals.idle and _settled(scaling, signals.ready, now):
        wish = max(wish, held + 1)
        why = f"{alert} fires with {_counted(held)}. {why}".rstrip()
    return min(wish, 2 * held, limits.most), why


def _keep(scaling: Scaling, limits: Limits, signals: LoadSignals) -> tuple[int, str]:
    """Return the recommended instances when scaling down (the current number if all are needed),
    and why."""
    held, need = scaling.target, signals.need
    if signals.deaf:
        return held, f"{signals.deaf} No instance is removed."
    if signals.idle:
        enough = _counted(limits.least, "is enough", "are enough")
        return limits.least, f"Nothing was asked for lately: {enough}."
    if signals.alert:
        why = "they are given time to help"
        if need and not need.helps:
            why = "more would not help"
        elif held == limits.most:
            why = "no more are allowed"
        return held, f"{signals.alert} fires with {_counted(held)}, and {why}."
    if signals.struggling:
        return held, "The attainment is below its target: no instance is removed."
    if held == limits.least:
        return held, f"{held} is the fewest allowed."
    if need is None:
        return held, "The load has yet to be simulated: no instance is removed."
    if need.survivors >= held:
        return held, f"By simulation of the load {_counted(held, 'is needed', 'are needed')}."
    keep = max(need.survivors, limits.least)
    enough = _counted(keep, "is enough", "are enough")
    if need.certain:
        return keep, f"By simulation of the busiest minute {enough}."
    return held - 1, f"By simulations that were cut short {enough}: one is removed."


def _counted(num: int, one: str = "", more: str = "") -> str:
    return f"1 instance {one}".rstrip() if num == 1 else f"{num} instances {more}".rstrip()


def _settled(scaling: Scaling, ready: int, now: float) -> bool:
    """Return whether the instances added last have had the time to help."""
    if not scaling.moves or scaling.moves[-1].after < scaling.moves[-1].before:
        return True
    since_s = now - scaling.moves[-1].at_s
    return since_s >= (SETTLE_S if ready >= scaling.target else PATIENCE_S)


def _move(scaling: Scaling, target: int, reason: str, now: float) -> tuple[TargetDecision, Scaling]:
    recent = [move for move in scaling.moves if now - move.at_s <= REMEMBERED_S + REBOUND_S]
    moves = (*recent, TargetChange(now, scaling.target, target))
    return TargetDecision(target, reason), resume(target, moves, now)


def _with_opinion(scaling: Scaling, wish: int, keep: int, limits: Limits, now: float) -> Scaling:
    """Add a recommendation, and drop those older than every window."""
    last = scaling.opinions[-1]
    if now - last.until_s > GAP_S:
        return resume(scaling.target, scaling.moves, now)
    if (last.wish, last.keep) == (wish, keep):
        opinions = (*scaling.opinions[:-1], replace(last, until_s=now))
    else:
        opinions = (*scaling.opinions, Opinion(now, now, wish, keep))
    longest_s = max(limits.up_s, limits.down_s * 2**MOST_DOUBLINGS)
    kept = tuple(opinion for opinion in opinions if now - opinion.until_s <= longest_s)
    return replace(scaling, opinions=kept)


def _within(scaling: Scaling, window_s: float, now: float) -> Iterator[Opinion]:
    return (opinion for opinion in scaling.opinions if now - opinion.until_s < window_s)


def _down_window_s(scaling: Scaling, limits: Limits, now: float) -> float:
    """Return the window for scaling down, seconds.

    Every recent mistake lengthens the window, so that a wrong model does not make the target
    oscillate.
    """
    num_rebounds = sum(
        lower.after < lower.before
        and raised.after > raised.before
        and raised.at_s - lower.at_s <= REBOUND_S
        and now - raised.at_s <= REMEMBERED_S
        for lower, raised in pairwise(scaling.moves)
    )
    return limits.down_s * 2 ** min(num_rebounds, MOST_DOUBLINGS)
