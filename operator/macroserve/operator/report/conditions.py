"""Conditions, which summarize the state of a MacroInstance after one reconcile.

They contain no ages or rates, so that an idle MacroInstance's status is not written.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from macroserve.operator.k8s.kinds import Object
from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.observe.observation import ServerState
from macroserve.operator.report.reconcile_result import ReconcileResult

MAX_ISSUES = 3
MAX_NAMES = 5


class ConditionType(StrEnum):
    READY = "Ready"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    ABLE_TO_SCALE = "AbleToScale"
    METRICS_AVAILABLE = "MetricsAvailable"


class Reason(StrEnum):
    """Reasons of conditions. Degraded also has Kubernetes' own, such as ``Unschedulable``."""

    SERVING = "Serving"
    HEAD_UNAVAILABLE = "HeadUnavailable"
    INGRESS_UNAVAILABLE = "IngressUnavailable"
    INSTANCES_UNAVAILABLE = "InstancesUnavailable"

    RECONCILED = "Reconciled"
    DELETING = "Deleting"
    ROLLING_OUT = "RollingOut"
    SCALING = "Scaling"
    REBALANCING = "Rebalancing"
    STARTING_SERVERS = "StartingServers"

    NO_PROBLEM = "NoProblem"
    INVALID_SPEC = "InvalidSpec"

    MANUAL_SCALING = "ManualScaling"
    AUTOSCALING_ACTIVE = "AutoscalingActive"
    STABILIZING = "Stabilizing"

    METRICS_RECEIVED = "MetricsReceived"
    NO_METRICS = "NoMetrics"
    NOT_NEEDED = "NotNeeded"


_ConditionDraft = tuple[ConditionType, bool | None, str, str]
"""Type, status (None: unknown), reason, message."""


def conditions(found: ReconcileResult) -> list[dict[str, Any]]:
    """Return all conditions, in the order of ``ConditionType``."""
    said = (_ready(found), _progressing(found), _degraded(found), _able(found), _metrics(found))
    observation = found.observation
    return _dated(
        said,
        observation.status.get("conditions", ()),
        observation.generation,
        observation.now,
    )


def invalid(
    problems: Sequence[str], before: Sequence[Object], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return the conditions of an invalid spec; most stay, because the pods keep running.

    problems: one sentence per problem.
    before: current conditions.
    """
    refused = "The spec is invalid and was not applied: " + " ".join(problems)
    unknown = "No valid spec has been applied yet."
    said: list[_ConditionDraft] = []
    for type_ in ConditionType:
        old = next((old for old in before if old["type"] == type_), None)
        if type_ is ConditionType.DEGRADED:
            said.append((type_, True, Reason.INVALID_SPEC, refused))
        elif old is None:
            status = False if type_ is ConditionType.READY else None
            said.append((type_, status, Reason.INVALID_SPEC, unknown))
        else:
            said.append((type_, _status(old["status"]), old["reason"], old["message"]))
    return _dated(said, before, generation, now)


def condition(of: Iterable[Object], type_: ConditionType) -> Object:
    """Return the condition of that type; one with status Unknown if there is none yet."""
    unknown = {"type": type_, "status": "Unknown", "reason": "", "message": ""}
    return next((found for found in of if found["type"] == type_), unknown)


def _ready(found: ReconcileResult) -> _ConditionDraft:
    observation = found.observation
    num_serving = len(found.serving)
    message = f"{num_serving} of {found.target.desired_instances} instances are ready."
    if not _any_ready(observation.head):
        reason = Reason.HEAD_UNAVAILABLE
        message = f"The head, which runs the cell schedulers, is not ready. {message}"
    elif not _any_ready(observation.ingress):
        reason = Reason.INGRESS_UNAVAILABLE
        message = f"No ingress is ready. {message}"
    elif num_serving < found.min_serving:
        reason = Reason.INSTANCES_UNAVAILABLE
    else:
        reason = Reason.SERVING
    return ConditionType.READY, reason is Reason.SERVING, reason, message


def _progressing(found: ReconcileResult) -> _ConditionDraft:
    observation, target = found.observation, found.target
    moving = (
        ("Starting", found.starting),
        ("Draining", found.draining),
        ("Ending", found.ending),
    )
    waits = [f"{what}: {_listed(p.instance for p in pods)}." for what, pods in moving if pods]
    servers = (("the head", observation.head), ("the ingress", observation.ingress))
    unready = [name for name, server in servers if not (server and server.complete)]
    if unready:
        waits.append(f"Not ready: {_listed(unready)}.")
    elif observation.report is None:
        waits.append("The head does not answer.")
    if observation.ingress and observation.ingress.has_outdated_pods:
        waits.append("Ingresses of an earlier revision finish their requests.")

    if observation.deleting:
        reason, what = Reason.DELETING, "The MacroInstance is being deleted."
    elif found.outdated:
        reason = Reason.ROLLING_OUT
        what = f"Instances of an earlier revision: {_listed(p.instance for p in found.outdated)}."
    elif any(pods for _, pods in moving) or len(found.serving) != target.desired_instances:
        reason, what = Reason.SCALING, f"Desired instances: {target.desired_instances}."
    elif waits:
        reason, what = Reason.STARTING_SERVERS, ""
    elif found.plan.decisions or found.plan.actions:
        reason, what = Reason.REBALANCING, "Instances are migrating between cells or pools."
    else:
        message = f"All {target.desired_instances} instances are ready."
        return ConditionType.PROGRESSING, False, Reason.RECONCILED, message
    return ConditionType.PROGRESSING, True, reason, " ".join(filter(None, (what, *waits)))


def _degraded(found: ReconcileResult) -> _ConditionDraft:
    issues = found.issues
    if not issues:
        return ConditionType.DEGRADED, False, Reason.NO_PROBLEM, "No problem is known."
    shown = [str(issue) for issue in issues[:MAX_ISSUES]]
    if more := len(issues) - len(shown):
        shown.append(f"And {more} more.")
    return ConditionType.DEGRADED, True, issues[0].problem.reason, " ".join(shown)


def _able(found: ReconcileResult) -> _ConditionDraft:
    scaling = found.observation.manifest.spec.autoscaling
    target = found.target
    if found.observation.deleting:
        return ConditionType.ABLE_TO_SCALE, False, Reason.DELETING, target.reason
    if scaling is None:
        message = "spec.instances sets the number; kubectl scale or an autoscaler may change it."
        return ConditionType.ABLE_TO_SCALE, True, Reason.MANUAL_SCALING, message
    if target.able:
        bounds = f"{scaling.min_instances} to {scaling.max_instances}"
        message = f"The autoscaler sets the number of instances, {bounds}. {target.reason}"
        return ConditionType.ABLE_TO_SCALE, True, Reason.AUTOSCALING_ACTIVE, message
    reason = Reason.STABILIZING if target.metrics_available else Reason.NO_METRICS
    return ConditionType.ABLE_TO_SCALE, False, reason, target.reason


def _metrics(found: ReconcileResult) -> _ConditionDraft:
    available = found.target.metrics_available
    if available is None:
        message = "Metrics are not needed without spec.autoscaling."
        if found.observation.deleting:
            message = found.target.reason
        return ConditionType.METRICS_AVAILABLE, None, Reason.NOT_NEEDED, message
    if available:
        message = "Load and attainment are known."
        return ConditionType.METRICS_AVAILABLE, True, Reason.METRICS_RECEIVED, message
    return ConditionType.METRICS_AVAILABLE, False, Reason.NO_METRICS, found.target.reason


def _dated(
    said: Iterable[_ConditionDraft], before: Sequence[Object], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return the conditions with transition times, which change only with a condition's status."""
    result = []
    for type_, status, reason, message in said:
        text = "Unknown" if status is None else str(status)
        old = condition(before, type_)
        stays = old["status"] == text and "lastTransitionTime" in old
        result.append(
            {
                "type": str(type_),
                "status": text,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if stays else rfc3339(now),
                "reason": str(reason),
                "message": message,
            }
        )
    return result


def _status(text: str) -> bool | None:
    return {"True": True, "False": False}.get(text)


def _any_ready(server: ServerState | None) -> bool:
    return server is not None and server.ready > 0


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - MAX_NAMES
    return ", ".join(listed[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
