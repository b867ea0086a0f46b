"""Results of reconciles with three serving instances, with changes."""

from datetime import UTC, datetime
from typing import Any

from support.manifests import emulated

from macroserve.api.manifest import Manifest, parse
from macroserve.api.messages import CellReport, InstanceReport, Report
from macroserve.core.scaling.fleet import FleetPlan
from macroserve.core.status import CellView, Ended, InstanceStatus, Pool
from macroserve.operator.observe.observation import InstancePod, Observation, Problem, ServerState
from macroserve.operator.observe.target import ScalingTarget
from macroserve.operator.plan.fleet import fleet
from macroserve.operator.report.reconcile_result import ReconcileResult

NOW = datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)
PROBLEM = Problem("OOMKilled", "It was killed because it used more memory than its limit of 1Gi.")


def manifest(**spec: Any) -> Manifest:
    return parse(emulated(**{"mitosis": {"lowerBound": 2, "upperBound": 6}, **spec}))


def pod(number: int, **differs: Any) -> InstancePod:
    name = f"instance-{number}"
    usual = {
        "instance": name,
        "name": f"llama-{name}",
        "cell": "cell-0",
        "pool": Pool.HP if number == 0 else Pool.LP,
        "revision": "new",
        "address": f"10.0.0.{number}",
        "ready": True,
    }
    return InstancePod(**{**usual, **differs})


HYBRID_CACHE = "on: hidden states take 0.50 of the memory of keys and values"


PREFIX_CACHING = "on: prompts share the blocks of a common prefix"


def cell(
    name: str,
    *numbers: int,
    finished: int = 0,
    attained: int = 0,
    prompt_tokens: int = 0,
    cached_tokens: int = 0,
    decodes: int = 0,
    decoded_tokens: int = 0,
    by_class: dict[str, tuple[int, int]] | None = None,
    **view: Any,
) -> CellReport:
    """Return the report of a cell of the instances with these numbers, of which instance-0 is HP.
    Requests and tokens are those of the last minute."""
    names = tuple(f"instance-{number}" for number in numbers)
    high_priority = tuple(name for name in names if name == "instance-0")
    return CellReport(
        CellView(name, names, high_priority, **view),
        tuple(
            InstanceReport(
                f"instance-{n}",
                Pool.LP,
                f"http://10.0.0.{n}:8000",
                InstanceStatus(1),
                0.1,
                0,
                hybrid_cache=HYBRID_CACHE,
                prefix_caching=PREFIX_CACHING,
            )
            for n in numbers
        ),
        recent_finished=finished,
        recent_attained=attained,
        recent_prompt_tokens=prompt_tokens,
        recent_cached_tokens=cached_tokens,
        recent_decodes=decodes,
        recent_decoded_tokens=decoded_tokens,
        recent_by_class={name: Ended(*counts) for name, counts in (by_class or {}).items()},
    )


def observation(**differs: Any) -> Observation:
    pods = differs.get("pods", tuple(pod(number) for number in range(3)))
    numbers = [int(p.instance.removeprefix("instance-")) for p in pods if p.ready]
    usual = {
        "now": NOW,
        "name": "llama",
        "namespace": "team",
        "uid": "u-1",
        "generation": 4,
        "deleting": False,
        "manifest": manifest(),
        "revision": "new",
        "pods": pods,
        "head": ServerState(1, 1),
        "ingress": ServerState(2, 2),
        "report": Report((cell("cell-0", *numbers),)),
        "running_cells": frozenset({"cell-0"}),
        "status": {},
    }
    return Observation(**{**usual, **differs})


def target(instances: int = 3, **differs: Any) -> ScalingTarget:
    return ScalingTarget(instances, **{"reason": f"spec.instances is {instances}.", **differs})


def reconcile_result(
    observed: Observation | None = None,
    desired: ScalingTarget | None = None,
    plan: FleetPlan | None = None,
    **more: Any,
) -> ReconcileResult:
    seen = observed or observation()
    return ReconcileResult(
        seen, fleet(seen), desired or target(), plan or FleetPlan((), ()), **more
    )
