"""How many instances a MacroInstance should have: from what is known to a target, with its reason.

Up at once, down slowly. More instances come as soon as an alert says that the targets are missed
or a simulation says that they will be. Fewer remain only once simulations have said, for a whole
window without a break, that those would do. Whatever is not known keeps the target as it is.

The rule is that of a HorizontalPodAutoscaler's stabilization: of all opinions in the window the
highest counts for going down, the lowest for going up. Its memory can be lost: ``resume`` makes it
anew from the target and its history, and the worst that follows is one more window of waiting.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

SETTLE_S = 60.0
"""After instances were added, an alert has this long to resolve before it adds another."""

PATIENCE_S = 180.0
"""It waits for added instances that do not serve yet, but not for longer than this."""

GAP_S = 60.0
"""Opinions further apart leave a gap: nobody knows what they would have been in between."""

REBOUND_S = 600.0
"""A number that had to be raised again so soon after it was lowered was too low."""

REMEMBERED_S = 3600.0
MOST_DOUBLINGS = 3
"""Each such mistake of the last hour doubles the window for going down, up to three times."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the target, and for how long a wish to go up or down must hold."""

    least: int
    most: int
    up_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """What simulations of a MacroInstance's load say.

    requests_per_s: that are expected, and what waits besides.
    enough: instances that keep the attainment under the load that is expected; never above twice
        the present number.
    survivors: the fewest that would keep it under the busiest minute of the down window as well.
    certain: whether they ran long enough to be relied on.
    helps: whether more instances raise the attainment at all.
    """

    requests_per_s: float
    enough: int
    survivors: int
    certain: bool = True
    helps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignals:
    """What is known at one moment.

    ready: instances that serve.
    alert: name of a firing alert that asks for more instances.
    need: None before the first simulation since the last change has ended.
    idle: nothing was asked for in the last minutes, and nothing waits or runs.
    struggling: of the requests that ended in the last minute fewer than wished met their targets.
    unknown: why the load is not known, a sentence. deaf: why an alert might not have arrived.
    """

    ready: int
    alert: str | None = None
    need: CapacityEstimate | None = None
    idle: bool = False
    struggling: bool = False
    unknown: str | None = None
    deaf: str | None = None


@dataclass(frozen=True, slots=True)
class TargetChange:
    """A change of the target, in seconds of the same clock as ``now``."""

    at_s: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """Between these two times growing to ``wish`` and shrinking to ``keep`` seemed right."""

    since_s: float
    until_s: float
    wish: int
    keep: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """A target and what its next change depends on. moves: oldest first."""

    target: int
    moves: tuple[TargetChange, ...] = ()
    opinions: tuple[Opinion, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetDecision:
    """target: how many instances there should be, and why.

    able: whether nothing stands in the way of what is wished for.
    """

    target: int
    reason: str
    able: bool = True


def resume(target: int, moves: Iterable[TargetChange], now: float) -> Scaling:
    """As after a restart, or wherever nobody knows what should have been wished for until now."""
    return Scaling(target, tuple(moves), (Opinion(now, now, target, target),))


def decide(
    scaling: Scaling, limits: Limits, signals: LoadSignals, now: float
) -> tuple[TargetDecision, Scaling]:
    """The target from now on, and what to remember until the next call."""
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
    """How many instances to grow to, the present number if it is enough."""
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
    """How many instances should remain, the present number if all are needed, and why."""
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
    """Whether the last instances that were added have had the time to help."""
    if not scaling.moves or scaling.moves[-1].after < scaling.moves[-1].before:
        return True
    since_s = now - scaling.moves[-1].at_s
    return since_s >= (SETTLE_S if ready >= scaling.target else PATIENCE_S)


def _move(scaling: Scaling, target: int, reason: str, now: float) -> tuple[TargetDecision, Scaling]:
    recent = [move for move in scaling.moves if now - move.at_s <= REMEMBERED_S + REBOUND_S]
    moves = (*recent, TargetChange(now, scaling.target, target))
    return TargetDecision(target, reason), resume(target, moves, now)


def _with_opinion(scaling: Scaling, wish: int, keep: int, limits: Limits, now: float) -> Scaling:
    """One more opinion; those that no window reaches any more are forgotten."""
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
    """Longer after every recent mistake, so that a wrong model does not make the number swing."""
    num_rebounds = sum(
        lower.after < lower.before
        and raised.after > raised.before
        and raised.at_s - lower.at_s <= REBOUND_S
        and now - raised.at_s <= REMEMBERED_S
        for lower, raised in pairwise(scaling.moves)
    )
    return limits.down_s * 2 ** min(num_rebounds, MOST_DOUBLINGS)
