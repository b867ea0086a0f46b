"""Kubernetes Events for the changes of a MacroInstance.

Repetitions within the hour for which an API server keeps events are one event with a count.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from macroserve.core.scaling.decisions import Add
from macroserve.core.scaling.fleet import Action, Attach, Drain, FleetPlan, Migrate, Start, Stop
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.plan.avoidance import AvoidedNode
from macroserve.operator.report.conditions import ConditionType, Reason, condition
from macroserve.operator.report.decisions import MAX_KEPT, DecisionRecord, decisions
from macroserve.operator.report.reconcile_result import Issue, ReconcileResult

KEPT_FOR = timedelta(hours=1)
MAX_MESSAGE_CHARS = 1000


class EventDraft(NamedTuple):
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class _SeenEvent:
    first: datetime
    last: datetime
    count: int


class Recorder:
    """Source of the Events of one MacroInstance; builds them without sending.

    resource: the MacroInstance in the API server. Its status contains the decisions of earlier
        processes, so that a restart repeats no Events.
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
        self._kept = [DecisionRecord.from_status(entry) for entry in status.get("decisions", ())]
        self._planned = {decision.what for decision in self._kept}
        self._conditions: Sequence[Object] = status.get("conditions", ())
        avoided = map(AvoidedNode.from_status, status.get("avoidedNodes", ()))
        self._issues = frozenset(Issue("", entry.problem) for entry in avoided)
        self._told: dict[EventDraft, _SeenEvent] = {}

    @property
    def decisions(self) -> tuple[DecisionRecord, ...]:
        """Return the newest decisions, the newest last."""
        return tuple(self._kept)

    def decide(self, plan: FleetPlan, now: datetime) -> tuple[DecisionRecord, ...]:
        """Record and return the new decisions; a plan repeats each until it is carried out."""
        planned = {decision.what: decision for decision in decisions(plan, now)}
        new = tuple(planned[what] for what in planned if what not in self._planned)
        self._planned = set(planned)
        self._kept = [*self._kept, *new][-MAX_KEPT:]
        return new

    def events(
        self, found: ReconcileResult, decided: Sequence[DecisionRecord], status: Object
    ) -> tuple[dict[str, Any], ...]:
        """Return the Events of a reconcile, for its new decisions and the new `status`."""
        news = [
            *_of_target(found),
            *(EventDraft(d.event, str(d)) for d in decided if d.event),
            *_of_actions(found),
            *self._of_conditions(status["conditions"]),
            *self._of_issues(found.issues),
        ]
        return tuple(self._event(told, found.observation.now) for told in news)

    def invalid(
        self, problems: Sequence[str], status: Object, now: datetime
    ) -> tuple[dict[str, Any], ...]:
        """Return the Events of an invalid spec; the same problems have one Event."""
        before = condition(self._conditions, ConditionType.DEGRADED)
        after = condition(status["conditions"], ConditionType.DEGRADED)
        self._conditions = status["conditions"]
        if (before["reason"], before["message"]) == (after["reason"], after["message"]):
            return ()
        return (
            self._event(EventDraft(Reason.INVALID_SPEC, " ".join(problems), warning=True), now),
        )

    def _of_conditions(self, after: Sequence[Object]) -> Iterator[EventDraft]:
        before, self._conditions = self._conditions, after

        def before_and_after(type_: ConditionType) -> tuple[Object, Object]:
            return condition(before, type_), condition(after, type_)

        old, new = before_and_after(ConditionType.READY)
        if new["status"] == "True" != old["status"]:
            yield EventDraft("Ready", new["message"])
        elif old["status"] == "True" and new["reason"] in (
            Reason.HEAD_UNAVAILABLE,
            Reason.INGRESS_UNAVAILABLE,
        ):
            yield EventDraft(new["reason"], new["message"], warning=True)

        old, new = before_and_after(ConditionType.PROGRESSING)
        if new["reason"] == Reason.DELETING != old["reason"]:
            yield EventDraft(
                "Deleting",
                "Draining: accepted requests complete before pods are deleted.",
            )
        elif new["reason"] == Reason.ROLLING_OUT != old["reason"]:
            yield EventDraft("RolloutStarted", new["message"])
        elif old["reason"] == Reason.ROLLING_OUT != new["reason"]:
            yield EventDraft("RolloutFinished", "Every instance runs the current revision.")

        old, new = before_and_after(ConditionType.METRICS_AVAILABLE)
        if new["status"] == "False" != old["status"]:
            yield EventDraft("MetricsUnavailable", new["message"], warning=True)
        elif old["status"] == "False" and new["status"] == "True":
            yield EventDraft("MetricsAvailable", new["message"])

    def _of_issues(self, issues: Sequence[Issue]) -> Iterator[EventDraft]:
        before, self._issues = self._issues, frozenset(issues)
        servers = {"The head": "HeadUnavailable", "The ingress": "IngressUnavailable"}
        for issue in issues:
            if issue not in before:
                reason = servers.get(issue.about, "InstanceFailed")
                yield EventDraft(
                    reason if issue.about else issue.problem.reason,
                    str(issue),
                    warning=True,
                )

    def _event(self, news: EventDraft, now: datetime) -> dict[str, Any]:
        """Return the Event in its ``v1`` form. A repeated Event keeps its name and is replaced."""
        recent = {n: t for n, t in self._told.items() if now - t.last < KEPT_FOR}
        told = recent.get(news)
        told = _SeenEvent(told.first, now, told.count + 1) if told else _SeenEvent(now, now, 1)
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


def _of_target(found: ReconcileResult) -> Iterator[EventDraft]:
    if change := found.target.change:
        grows = change.to_instances > change.from_instances
        counts = f"From {change.from_instances} to {change.to_instances} instances."
        yield EventDraft("ScaledUp" if grows else "ScaledDown", f"{counts} {change.reason}")


def _of_actions(found: ReconcileResult) -> Iterator[EventDraft]:
    why = {c.instance: c.reason for c in found.plan.decisions if isinstance(c, Add)}
    for action in found.done:
        if news := _of_action(action, why):
            yield news


def _of_action(action: Action, why: Mapping[str, str]) -> EventDraft | None:
    match action:
        case Start(instance=name, cell=cell, pool=pool):
            reason = why.get(name, "")
            return EventDraft(
                "InstanceAdded", f"{name} ({pool.label}) starts for {cell}. {reason}".rstrip()
            )
        case Attach(instance=name, cell=cell):
            return EventDraft("InstanceReady", f"{name} is ready in {cell}.")
        case Migrate(instance=name, to_cell=cell, as_pool=pool):
            return EventDraft(
                "HandleMigrated", f"{name} ({pool.label}) migrated to {cell}; its streams continue."
            )
        case Drain(instance=name, reason=reason):
            return EventDraft("InstanceDraining", f"{name} takes no new requests. {reason}")
        case Stop(instance=name, reason=reason):
            return EventDraft("InstanceRemoved", f"{name} is stopped. {reason}")
    return None
