"""The newest decisions, with time and reason, for ``status.decisions``."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from macroserve.core.scaling.decisions import Decision, Merge, Remove, SetPool, Split, describe
from macroserve.core.scaling.fleet import Drain, FleetPlan
from macroserve.operator.k8s.times import rfc3339

MAX_KEPT = 20


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision and its reason."""

    time: str
    what: str
    """The decision without a full stop, such as ``Merge cell-1 into cell-0``."""
    reason: str
    """A sentence."""
    event: str = ""
    """Reason of its Event; empty if its actions have their own Events."""

    @staticmethod
    def from_status(entry: Mapping[str, Any]) -> "DecisionRecord":
        return DecisionRecord(entry["time"], entry["what"], entry["reason"])

    def to_status(self) -> dict[str, str]:
        return {"time": self.time, "what": self.what, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.what}. {self.reason}"


def decisions(plan: FleetPlan, now: datetime) -> tuple[DecisionRecord, ...]:
    """Return the decisions of a plan, including the instances that a rollout replaces."""
    time = rfc3339(now)
    removed = {decision.instance for decision in plan.decisions if isinstance(decision, Remove)}
    return (
        *(
            DecisionRecord(
                time, describe(decision), decision.reason, _EVENTS.get(type(decision), "")
            )
            for decision in plan.decisions
        ),
        *(
            DecisionRecord(time, f"Replace {action.instance}", action.reason)
            for action in plan.actions
            if isinstance(action, Drain) and action.instance not in removed
        ),
    )


_EVENTS: dict[type[Decision], str] = {
    Split: "Split",
    Merge: "Merged",
    SetPool: "RatioChanged",
}
