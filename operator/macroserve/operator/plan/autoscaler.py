"""Autoscaler, which sets each MacroInstance's number of instances and the HP pool's share of them.

With ``spec.autoscaling`` the target is in ``status.targetInstances`` and follows alerts, a forecast
of the load and simulations (``core.scaling.autoscale``). Otherwise it is ``spec.instances``, which
``kubectl scale`` and an HPA write.

A ratio of ``Auto`` is in ``status.highPriorityRatio``. While too few requests meet their targets,
the same simulation checks whether another ratio would serve them better.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from macroserve.api.manifest import Autoscaling, Manifest, leaves_ratio_open
from macroserve.api.messages import Report
from macroserve.core.scaling.autoscale import (
    START_S,
    CapacityEstimate,
    Limits,
    LoadSignals,
    Scaling,
    TargetChange,
    decide,
    resume,
)
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.signals import load_signals as signals_of
from macroserve.core.scaling.signals import response_s
from macroserve.operator import metrics
from macroserve.operator.k8s.names import Key
from macroserve.operator.observe.observation import Observation
from macroserve.operator.observe.target import Change, ScalingTarget, last_desired_instances
from macroserve.operator.plan import load_signals
from macroserve.operator.plan.firing_alerts import Alert, FiringAlerts
from macroserve.operator.plan.simulations import Simulations
from macroserve.sim.capacity.capacity import need
from macroserve.sim.capacity.pools import best_ratio
from macroserve.sim.capacity.traffic import expected

METRICS_MISSING = "MacroserveMetricsMissing"


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of a simulated load; `need` is None without autoscaling."""

    need: CapacityEstimate | None
    high_priority_ratio: float


def needs_load(manifest: Manifest, report: Report) -> bool:
    """Return whether a decision depends on the recent load of a MacroInstance."""
    return manifest.spec.autoscaling is not None or _asks_for_ratio(manifest, report)


class Autoscaler:
    """Alerts, simulations and targets of all MacroInstances; lost with the process.

    wake: called on the event loop when a new alert or simulation may change a target.
    """

    def __init__(
        self,
        wake: Callable[[Key], None],
        alerts: FiringAlerts | None = None,
        simulations: Simulations[SimulationResult] | None = None,
    ) -> None:
        self._wake = wake
        self._alerts = alerts or FiringAlerts()
        self._simulations = simulations or Simulations(wake)
        self._scalings: dict[Key, Scaling] = {}

    def record_alert(self, alert: Alert) -> None:
        """Record an alert about a MacroInstance that exists, or about none in particular."""
        if self._alerts.note(alert) and alert.about:
            self._wake(alert.about)

    def target(self, observation: Observation, load: LoadReport | None) -> ScalingTarget:
        """Return the target of this reconcile, without waiting for a simulation.

        load: the head's current report; None if it does not answer or ``needs_load`` is False.
        """
        key = Key(observation.namespace, observation.name)
        autoscaling = observation.manifest.spec.autoscaling
        if autoscaling is None:
            self._scalings.pop(key, None)
            target = _as_specified(observation)
        else:
            target = self._autoscaled(key, autoscaling, observation, load)
        target = replace(target, high_priority_ratio=self._ratio(key, observation, load))
        if target.change or target.high_priority_ratio != load_signals.present_ratio(observation):
            # Results were for other instances.
            self._simulations.forget(key)
        metrics.DESIRED_INSTANCES.labels(*key).set(target.desired_instances)
        metrics.READY_INSTANCES.labels(*key).set(load_signals.num_ready(observation))
        return target

    def forget(self, key: Key) -> None:
        """Drop the state of a deleted MacroInstance."""
        self._scalings.pop(key, None)
        self._simulations.forget(key)
        self._alerts.forget(key)
        for gauge in (metrics.DESIRED_INSTANCES, metrics.READY_INSTANCES):
            with contextlib.suppress(KeyError):
                gauge.remove(*key)

    async def stop(self) -> None:
        await self._simulations.stop()

    def _autoscaled(
        self,
        key: Key,
        autoscaling: Autoscaling,
        observation: Observation,
        load: LoadReport | None,
    ) -> ScalingTarget:
        now = observation.now.timestamp()
        held = last_desired_instances(observation.status, observation.manifest)
        scaling = self._scalings.get(key)
        if scaling is None or scaling.target != held:
            scaling = resume(held, _moves(observation.status), now)
            self._simulations.forget(key)
        limits = _limits(autoscaling)
        signals = self._signals(key, observation, load)
        decision, self._scalings[key] = decide(scaling, limits, signals, now)
        change = None
        if decision.target != held:
            change = Change(observation.now, held, decision.target, decision.reason)
        is_known = not (signals.unknown or signals.alerts_missing)
        return ScalingTarget(decision.target, decision.reason, decision.able, is_known, change)

    def _signals(self, key: Key, observation: Observation, load: LoadReport | None) -> LoadSignals:
        firing = self._alerts.firing(key)
        alerts_missing = None
        if METRICS_MISSING in firing:
            alerts_missing = f"{METRICS_MISSING} fires."
        elif self._alerts.is_silent:
            alerts_missing = "No alerts arrive from Alertmanager."
        unknown = load_signals.unknown(observation, load)
        is_idle, findings, answer_s = False, None, 0.0
        if load is not None and not unknown:
            answer_s = response_s(load, observation.manifest.slo.tpot_s)
            is_idle = load_signals.is_idle(observation, load)
            findings = None if is_idle else self._findings(key, observation, load)
        return signals_of(
            ready=load_signals.num_ready(observation),
            firing=firing,
            alerts_missing=alerts_missing,
            unknown=unknown,
            idle=is_idle,
            below_target=load_signals.is_below_target(observation.manifest, observation.report),
            need=findings.need if findings else None,
            start_s=load_signals.start_s(observation, START_S),
            response_s=answer_s,
        )

    def _ratio(self, key: Key, observation: Observation, load: LoadReport | None) -> float:
        findings, is_known = None, not load_signals.unknown(observation, load)
        if load and is_known and _asks_for_ratio(observation.manifest, observation.report):
            findings = self._findings(key, observation, load)
        if findings is None:
            return load_signals.present_ratio(observation)
        return load_signals.shown_ratio(findings.high_priority_ratio)

    def _findings(
        self, key: Key, observation: Observation, load: LoadReport
    ) -> SimulationResult | None:
        return self._simulations.latest(key, partial(_simulate, observation, load))


def _simulate(observation: Observation, load: LoadReport) -> SimulationResult | None:
    """Simulate the load; return None before an instance has reported its design."""
    design = load_signals.design(observation, load)
    if design is None:
        return None
    spec = observation.manifest.spec
    held = last_desired_instances(observation.status, observation.manifest)
    num_waiting = load_signals.num_waiting(observation)
    start_s = load_signals.start_s(observation, START_S)
    found = None
    if spec.autoscaling:
        limits = _limits(spec.autoscaling)
        found = need(
            design,
            load,
            goal=spec.slo.attainment,
            present=held,
            least=limits.least,
            most=limits.most,
            start_s=start_s,
            num_waiting=num_waiting,
        )
    ratio, coming = design.high_priority_ratio, expected(load, num_waiting, start_s)
    if coming and _asks_for_ratio(observation.manifest, observation.report):
        ratio = best_ratio(design, coming, held, spec.slo.attainment)
    return SimulationResult(found, ratio)


def _asks_for_ratio(manifest: Manifest, report: Report | None) -> bool:
    return leaves_ratio_open(manifest) and load_signals.is_below_target(manifest, report)


def _as_specified(observation: Observation) -> ScalingTarget:
    wanted = observation.manifest.spec.instances
    reason = f"spec.instances is {wanted}."
    before = observation.status.get("targetInstances")
    if before in (None, wanted):
        return ScalingTarget(wanted, reason)
    return ScalingTarget(wanted, reason, change=Change(observation.now, before, wanted, reason))


def _limits(autoscaling: Autoscaling) -> Limits:
    stabilization = autoscaling.stabilization
    return Limits(
        autoscaling.min_instances,
        autoscaling.max_instances,
        stabilization.up_s,
        stabilization.down_s,
    )


def _moves(status: Mapping[str, Any]) -> Iterator[TargetChange]:
    for entry in status.get("scalingHistory", ()):
        at_s = datetime.fromisoformat(entry["time"]).timestamp()
        yield TargetChange(at_s, entry["from"], entry["to"])
