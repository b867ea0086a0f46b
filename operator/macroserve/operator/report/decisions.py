"""What was decided, when and why: the newest of it stays in ``status.decisions``."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from macroserve.core.scaling.commands import Command, Merge, Remove, SetPriority, Split, told
from macroserve.core.scaling.fleet import Drain, FleetPlan
from macroserve.operator.k8s.times import rfc3339

MAX_KEPT = 20


@dataclass(frozen=True, slots=True)
class Decision:
    """what: such as ``Merge cell-1 into cell-0``, without a full stop. reason: a sentence.

    event: the reason of the Event that tells it; empty where its steps are told instead.
    """

    time: str
    what: str
    reason: str
    event: str = ""

    @staticmethod
    def from_status(entry: Mapping[str, Any]) -> "Decision":
        return Decision(entry["time"], entry["what"], entry["reason"])

    def to_status(self) -> dict[str, str]:
        return {"time": self.time, "what": self.what, "reason": self.reason}

    def __str__(self) -> str:
        return f"{self.what}. {self.reason}"


def decisions(plan: FleetPlan, now: datetime) -> tuple[Decision, ...]:
    """What a plan decides: its commands, and which instances a rollout replaces."""
    time = rfc3339(now)
    removed = {command.instance for command in plan.commands if isinstance(command, Remove)}
    return (
        *(
            Decision(time, told(command), command.reason, _EVENTS.get(type(command), ""))
            for command in plan.commands
        ),
        *(
            Decision(time, f"Replace {step.instance}", step.reason)
            for step in plan.steps
            if isinstance(step, Drain) and step.instance not in removed
        ),
    )


_EVENTS: dict[type[Command], str] = {
    Split: "Split",
    Merge: "Merged",
    SetPriority: "RatioChanged",
}
