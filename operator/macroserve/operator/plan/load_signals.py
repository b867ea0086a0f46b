"""Load signals for scaling, from one reconcile's observation."""

from dataclasses import replace

from macroserve.api.class_attainment import recent_by_class
from macroserve.api.manifest import Manifest
from macroserve.api.messages import Report
from macroserve.core.engine_sizes import SMALL
from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.scaling import signals
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.signals import uncounted
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.status import Pool
from macroserve.core.strategy import Ordering, Strategy
from macroserve.operator.observe.observation import Observation
from macroserve.sim.capacity.scale_down_check import InstanceModel
from macroserve.sim.instance import FixedLatencyModel


def unknown(observation: Observation, load: LoadReport | None) -> str | None:
    """Return why the load is unknown, as a sentence, or None if it is known."""
    if observation.report is None:
        return "The head does not answer, so the load is unknown."
    if load is None:
        return "The head does not report the recent load."
    return uncounted(load)


def is_idle(observation: Observation, load: LoadReport) -> bool:
    """Return whether no requests came in the minutes of ``load``, and none run now."""
    return signals.is_idle(load, [report.cell for report in observation.cells])


def is_below_target(manifest: Manifest, report: Report | None) -> bool:
    """Return whether the attainment of the last minute was below the target, in any SLO class."""
    goals = {each.name: each.attainment for each in manifest.slo_classes}
    goals[DEFAULT_CLASS] = manifest.spec.slo.attainment
    return signals.is_below_target(recent_by_class(report.cells if report else ()), goals)


def num_waiting(observation: Observation) -> int:
    """Return the number of requests that wait for their prefill."""
    return sum(report.cell.num_waiting for report in observation.cells)


def num_ready(observation: Observation) -> int:
    return sum(
        pod.ready and not (pod.deleting or pod.failed or pod.draining_since)
        for pod in observation.pods
    )


def start_s(observation: Observation, default_s: float) -> float:
    """Return the measured 90th percentile of instances' start times, seconds, or the default.

    In a claim that instances write, all nodes find what the first one fetched, so cold starts no
    longer count once a warm one was measured.
    """
    measured = observation.status.get("startup")
    if measured is None:
        return default_s
    cache = observation.manifest.spec.model.cache
    if cache and cache.claim and "warm" in measured:
        measured = measured["warm"]
    return float(measured["p90Seconds"])


def present_ratio(observation: Observation) -> float:
    """Return the share of HP instances that is in force, as the status shows it."""
    auto_ratio = observation.status.get("highPriorityRatio")
    fleet = observation.manifest.desired_fleet(auto_ratio=auto_ratio)
    return shown_ratio(fleet.high_priority_ratio)


def shown_ratio(ratio: float) -> float:
    """Return a share with the digits that a status shows: a third is 0.333."""
    return round(ratio, 3)


def _strategy(manifest: Manifest) -> Strategy:
    """Return the strategy with the manifest's ordering.

    A user's function is only in the engines' environment; the strategy's own ordering replaces it.
    """
    ordering = manifest.spec.scheduling.ordering
    if ordering == "Auto" or ":" in ordering:
        return manifest.strategy
    return replace(manifest.strategy, ordering=Ordering(ordering.lower()))


def design(observation: Observation, load: LoadReport) -> InstanceModel | None:
    """Return the design of the instances by their own reports, or None before the first one."""
    statuses = [instance.status for cell in observation.cells for instance in cell.instances]
    known = [status for status in statuses if status.num_blocks]
    if not known or load.model is None or load.device is None or load.coefficients is None:
        return None
    smallest = min(known, key=lambda status: status.num_blocks * status.block_size)
    manifest = observation.manifest
    # Missing limits keep the defaults.
    sizes = SMALL.given(smallest.block_size, load.max_num_seqs, load.max_batch_tokens)
    config = InstanceConfig(
        strategy=_strategy(manifest),
        pool=Pool.LP,
        slo=manifest.slo,
        num_blocks=smallest.num_blocks,
        block_size=sizes.block_size,
        max_num_seqs=sizes.max_num_seqs,
        max_batch_tokens=sizes.max_batch_tokens,
        max_model_len=manifest.spec.model.max_model_len,
        drop_late=manifest.spec.scheduling.drop_late,
        max_late_wait_s=manifest.spec.scheduling.max_late_wait_s,
        tuning=manifest.spec.scheduling.tuning.tuning.over_stages(
            manifest.spec.engine.pipeline_parallel
        ),
    )
    latency = FixedLatencyModel(load.model, load.device, load.coefficients)
    return InstanceModel(
        config,
        latency,
        present_ratio(observation),
        manifest.spec.mitosis.upper_bound,
        manifest.slo_classes,
        manifest.spec.slo.attainment,
    )
