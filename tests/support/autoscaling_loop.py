"""Rounds of the autoscaler with signals that a test chooses."""

from macroserve.core.scaling.autoscale import (
    CapacityEstimate,
    Limits,
    LoadSignals,
    decide,
    resume,
)

LIMITS = Limits(least=1, most=16, up_s=0.0, down_s=300.0)
ALERT = "MacroserveSLOAttainmentLow"
ALERTS_MISSING = "No alerts arrive from Alertmanager."
UNKNOWN = "The head does not answer."
ROUND_S = 5.0


def need(enough, survivors=None, **fields):
    return CapacityEstimate(10.0, enough, enough if survivors is None else survivors, **fields)


def signals(enough=4, survivors=None, *, ready=4, **fields):
    """Return signals of four instances that are all needed, with changes."""
    fields.setdefault("need", need(enough, survivors))
    return LoadSignals(ready=ready, **fields)


def spare(survivors, **fields):
    """Return signals under which fewer instances would also be enough."""
    return lambda target: signals(target, min(survivors, target), ready=target, **fields)


def first(given, *, target=4, limits=LIMITS, changes=(), now=10_000.0):
    """Return the first decision."""
    decision, _ = decide(resume(target, changes, now), limits, given, now)
    return decision


class Loop:
    """A decision every few seconds, with a record of all ``targets`` and their times."""

    def __init__(self, target=4, limits=LIMITS, changes=(), now=10_000.0):
        self.limits = limits
        self.now = now
        self.scaling = resume(target, changes, now)
        self.targets = [(now, target)]
        self.decision = None

    def round(self, given):
        before = self.scaling.target
        self.decision, self.scaling = decide(self.scaling, self.limits, given, self.now)
        assert self.decision.target == self.scaling.target
        assert self.decision.reason.endswith("."), self.decision
        if self.decision.target != before:
            self.targets.append((self.now, self.decision.target))
        return self.decision.target

    def run(self, given, for_s):
        """Run for a time. given: signals, or a function that returns them for the current
        target."""
        end_s = self.now + for_s
        while self.now < end_s:
            self.now += ROUND_S
            self.round(given(self.scaling.target) if callable(given) else given)
        return self.scaling.target

    def restart(self):
        """Restart from the state in the status."""
        self.scaling = resume(self.scaling.target, self.scaling.changes, self.now)
