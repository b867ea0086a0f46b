"""The whole ``status`` of a MacroInstance, computed from one reconcile.

Equal reconciles give equal statuses, so an idle MacroInstance causes no writes.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from macroserve.api.class_attainment import recent_by_class
from macroserve.api.messages import CellReport
from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.status import Pool, by_number
from macroserve.operator.k8s import names
from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.observe.observation import Observation
from macroserve.operator.observe.target import Change
from macroserve.operator.report.conditions import conditions, invalid
from macroserve.operator.report.decisions import MAX_KEPT, DecisionRecord
from macroserve.operator.report.reconcile_result import ReconcileResult
from macroserve.operator.report.scheduling_state import cell_figures, ratio, scheduling
from macroserve.operator.report.startup import startup


def status(found: ReconcileResult, decisions: Sequence[DecisionRecord]) -> dict[str, Any]:
    """Return the whole status without empty lists. `decisions` are sorted, the newest last."""
    observation, target = found.observation, found.target
    cells = _cells(observation)
    num_serving = len(found.serving)
    known = {
        "observedGeneration": observation.generation,
        "ready": f"{num_serving}/{target.desired_instances}",
        "instances": sum(not pod.deleting for pod in observation.pods),
        "readyInstances": num_serving,
        "targetInstances": target.desired_instances,
        "cellCount": len(cells),
        "highPriority": sum(cell["highPriority"] for cell in cells),
        "highPriorityRatio": target.high_priority_ratio,
        "selector": _selector(observation.name),
        "attainment": _attainment(observation.cells),
        "sloClasses": _slo_classes(observation),
        "hybridCache": _told(i.hybrid_cache for c in observation.cells for i in c.instances),
        "prefixCaching": _told(i.prefix_caching for c in observation.cells for i in c.instances),
        "prefixCacheHitRatio": _hit_ratio(observation.cells),
        "acceptedTokensPerStep": _accepted_tokens(observation.cells),
        "endpoint": f"http://{observation.name}.{observation.namespace}.svc:{names.PUBLIC_PORT}/v1",
        "cells": cells,
        "scheduling": scheduling(observation),
        "scalingHistory": _history(observation.status, target.change),
        "decisions": [decision.to_status() for decision in decisions[-MAX_KEPT:]],
        "avoidedNodes": [entry.to_status() for entry in found.avoidance.nodes],
        "startup": startup(observation),
        "failedStarts": [entry.to_status() for entry in found.avoidance.starts],
        "conditions": conditions(found),
    }
    return {field: value for field, value in known.items() if value not in (None, [])}


def invalid_status(
    before: Mapping[str, Any], problems: Sequence[str], generation: int, now: datetime
) -> dict[str, Any]:
    """Return the status of an invalid spec: only conditions change.

    problems: one sentence per problem.
    """
    said = invalid(problems, before.get("conditions", ()), generation, now)
    return {**before, "observedGeneration": generation, "conditions": said}


def _selector(name: str) -> str:
    labels = names.selector(name, "instance")
    return ",".join(f"{label}={value}" for label, value in labels.items())


def _cells(observation: Observation) -> list[dict[str, Any]]:
    """Return the cells by their schedulers' reports, or by the pods' labels without the head."""
    if observation.report:
        cells = [_reported(report) for report in observation.cells]
    else:
        cells = _labelled(observation)
    return sorted(cells, key=lambda cell: by_number(cell["name"]))


def _reported(report: CellReport) -> dict[str, Any]:
    view = report.cell
    cell: dict[str, Any] = {
        "name": view.name,
        "instances": len(view.instances),
        "highPriority": len(view.high_priority),
        "prefilling": view.num_prefilling,
        "decoding": view.num_decoding,
        "waiting": view.num_waiting,
        "running": view.num_running,
    }
    attainment = _attainment((report,))
    if attainment is not None:
        cell["attainment"] = attainment
    return {**cell, **cell_figures(report)}


def _labelled(observation: Observation) -> list[dict[str, Any]]:
    pools: dict[str, list[Pool]] = {}
    for pod in observation.pods:
        if not pod.deleting:
            pools.setdefault(pod.cell, []).append(pod.pool)
    return [
        {"name": cell, "instances": len(of), "highPriority": of.count(Pool.HP)}
        for cell, of in pools.items()
    ]


def _attainment(cells: Sequence[CellReport]) -> str | None:
    """Return the attainment of the last minute, or None if no request ended."""
    attained = sum(report.recent_attained for report in cells)
    return ratio(attained, sum(report.recent_finished for report in cells))


def _slo_classes(observation: Observation) -> list[dict[str, str]] | None:
    """Return the attainment of the last minute by SLO class, or None if the spec defines none."""
    classes = observation.manifest.slo_classes
    if not classes:
        return None
    ended = recent_by_class(observation.cells)
    shown: list[dict[str, str]] = []
    for name in (DEFAULT_CLASS, *(each.name for each in classes)):
        found = ended.get(name)
        attainment = found and ratio(found.attained, found.finished)
        shown.append({"name": name, **({"attainment": attainment} if attainment else {})})
    return shown


def _hit_ratio(cells: Sequence[CellReport]) -> str | None:
    """Return the share of the last minute's prompt tokens found in prefix caches, if any began."""
    cached = sum(report.recent_cached_tokens for report in cells)
    return ratio(cached, sum(report.recent_prompt_tokens for report in cells))


def _accepted_tokens(cells: Sequence[CellReport]) -> str | None:
    """Return the mean tokens per step and request of speculating engines in the last minute."""
    num_tokens = sum(report.recent_decoded_tokens for report in cells)
    return ratio(num_tokens, sum(report.recent_decodes for report in cells))


def _told(decisions: Iterable[str]) -> str | None:
    """Return an engine's decision from the instances' reports, or None before the first one."""
    return "; ".join(sorted({*decisions} - {""})) or None


def _history(before: Mapping[str, Any], change: Change | None) -> list[dict[str, Any]]:
    history = list(before.get("scalingHistory", ()))
    if change:
        history.append(
            {
                "time": rfc3339(change.time),
                "from": change.from_instances,
                "to": change.to_instances,
                "reason": change.reason,
            }
        )
    return history[-MAX_KEPT:]
