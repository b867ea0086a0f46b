"""What is told of a MacroInstance as Kubernetes Events: each thing once, when it happens.

``Recorder`` remembers what was decided and told; it makes event objects and sends nothing. What
is told again and again within the hour for which an API server keeps events is one event with a
count.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from macroserve.core.scaling.commands import Add
from macroserve.core.scaling.fleet import Adopt, Drain, FleetPlan, Move, Start, Step, Stop
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.plan.avoidance import AvoidedNode
from macroserve.operator.report.conditions import Kind, Reason, condition
from macroserve.operator.report.decisions import MAX_KEPT, Decision, decisions
from macroserve.operator.report.reconcile_result import Complaint, Round

KEPT_FOR = timedelta(hours=1)
MAX_MESSAGE_CHARS = 1000


class News(NamedTuple):
    """One thing to tell."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class _Told:
    first: datetime
    last: datetime
    count: int


class Recorder:
    """Of one MacroInstance, for as long as this process looks after it.

    resource: the MacroInstance as the API server has it; its status tells what an earlier process
    decided, so that a restart repeats nothing.
    """

    def __init__(self, resource: Object) -> None:
        metadata, status = resource["metadata"], resource.get("status", {})
        self._about = {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }
        self._kept = [Decision.from_status(entry) for entry in status.get("decisions", ())]
        self._planned = {decision.what for decision in self._kept}
        self._conditions: Sequence[Object] = status.get("conditions", ())
        avoided = map(AvoidedNode.from_status, status.get("avoidedNodes", ()))
        self._complaints = frozenset(Complaint("", entry.problem) for entry in avoided)
        self._told: dict[News, _Told] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The newest, last."""
        return tuple(self._kept)

    def decide(self, plan: FleetPlan, now: datetime) -> tuple[Decision, ...]:
        """Keeps and returns what is new: a plan decides the same until it is carried out."""
        planned = {decision.what: decision for decision in decisions(plan, now)}
        new = tuple(planned[what] for what in planned if what not in self._planned)
        self._planned = set(planned)
        self._kept = [*self._kept, *new][-MAX_KEPT:]
        return new

    def events(
        self, found: Round, decided: Sequence[Decision], status: Object
    ) -> tuple[dict[str, Any], ...]:
        """decided: what ``decide`` returned. status: as it is after this round."""
        news = [
            *_of_target(found),
            *(News(d.event, str(d)) for d in decided if d.event),
            *_of_steps(found),
            *self._of_conditions(status["conditions"]),
            *self._of_complaints(found.complaints),
        ]
        return tuple(self._event(told, found.observation.now) for told in news)

    def invalid(
        self, problems: Sequence[str], status: Object, now: datetime
    ) -> tuple[dict[str, Any], ...]:
        """Of a spec that cannot be used; told once for the same problems."""
        before = condition(self._conditions, Kind.DEGRADED)
        after = condition(status["conditions"], Kind.DEGRADED)
        self._conditions = status["conditions"]
        if (before["reason"], before["message"]) == (after["reason"], after["message"]):
            return ()
        return (self._event(News(Reason.INVALID_SPEC, " ".join(problems), warning=True), now),)

    def _of_conditions(self, after: Sequence[Object]) -> Iterator[News]:
        before, self._conditions = self._conditions, after

        def step(kind: Kind) -> tuple[Object, Object]:
            return condition(before, kind), condition(after, kind)

        old, new = step(Kind.READY)
        if new["status"] == "True" != old["status"]:
            yield News("Ready", new["message"])
        elif old["status"] == "True" and new["reason"] in (
            Reason.HEAD_UNAVAILABLE,
            Reason.INGRESS_UNAVAILABLE,
        ):
            yield News(new["reason"], new["message"], warning=True)

        old, new = step(Kind.PROGRESSING)
        if new["reason"] == Reason.DELETING != old["reason"]:
            yield News("Deleting", "The ingress finishes what it has accepted, then all ends.")
        elif new["reason"] == Reason.ROLLING_OUT != old["reason"]:
            yield News("RolloutStarted", new["message"])
        elif old["reason"] == Reason.ROLLING_OUT != new["reason"]:
            yield News("RolloutFinished", "Every instance is of the spec's present form.")

        old, new = step(Kind.METRICS_AVAILABLE)
        if new["status"] == "False" != old["status"]:
            yield News("MetricsUnavailable", new["message"], warning=True)
        elif old["status"] == "False" and new["status"] == "True":
            yield News("MetricsAvailable", new["message"])

    def _of_complaints(self, complaints: Sequence[Complaint]) -> Iterator[News]:
        before, self._complaints = self._complaints, frozenset(complaints)
        servers = {"The head": "HeadUnavailable", "The ingress": "IngressUnavailable"}
        for complaint in complaints:
            if complaint not in before:
                reason = servers.get(complaint.about, "InstanceFailed")
                yield News(
                    reason if complaint.about else complaint.problem.reason,
                    str(complaint),
                    warning=True,
                )

    def _event(self, news: News, now: datetime) -> dict[str, Any]:
        """As ``v1`` has it. Told again, it has its earlier name and is to replace it."""
        recent = {n: t for n, t in self._told.items() if now - t.last < KEPT_FOR}
        told = recent.get(news)
        told = _Told(told.first, now, told.count + 1) if told else _Told(now, now, 1)
        self._told = {**recent, news: told}
        digest = hashlib.sha256(f"{news.reason}\n{news.message}".encode()).hexdigest()[:10]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{self._about['name']}.{int(told.first.timestamp()):x}-{digest}",
                "namespace": self._about["namespace"],
            },
            "involvedObject": self._about,
            "reason": news.reason,
            "message": news.message[:MAX_MESSAGE_CHARS],
            "type": "Warning" if news.warning else "Normal",
            "source": {"component": names.MANAGER},
            "reportingComponent": names.MANAGER,
            "firstTimestamp": rfc3339(told.first),
            "lastTimestamp": rfc3339(told.last),
            "count": told.count,
        }


def _of_target(found: Round) -> Iterator[News]:
    if change := found.target.change:
        grows = change.to_instances > change.from_instances
        counts = f"From {change.from_instances} to {change.to_instances} instances."
        yield News("ScaledUp" if grows else "ScaledDown", f"{counts} {change.reason}")


def _of_steps(found: Round) -> Iterator[News]:
    why = {c.instance: c.reason for c in found.plan.commands if isinstance(c, Add)}
    for step in found.done:
        if news := _of_step(step, why):
            yield news


def _of_step(step: Step, why: Mapping[str, str]) -> News | None:
    match step:
        case Start(instance=name, cell=cell, pool=pool):
            reason = why.get(name, "")
            return News("InstanceAdded", f"{name} ({pool}) starts for {cell}. {reason}".rstrip())
        case Adopt(instance=name, cell=cell):
            return News("InstanceReady", f"{name} has made a token, and serves in {cell}.")
        case Move(instance=name, source=source, target=target):
            moved = f"{name} moved from {source} to {target}; its streams go on."
            return News("HandleMigrated", moved)
        case Drain(instance=name, reason=reason):
            return News("InstanceDraining", f"{name} takes no new requests. {reason}")
        case Stop(instance=name, reason=reason):
            return News("InstanceRemoved", f"{name} is stopped. {reason}")
    return None
