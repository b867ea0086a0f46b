"""How many instances each MacroInstance should have, between two rounds of its reconciling.

With ``spec.autoscaling`` the target lives in ``status.targetInstances``: alerts, a forecast of the
load and simulations of it move it, as ``core.scaling.autoscale`` decides. Without, it is
``spec.instances``, which ``kubectl scale`` and an HPA write.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from macroserve.core.manifest import Autoscaling
from macroserve.core.reports import LoadReport
from macroserve.core.scaling.autoscale import Limits, Move, Need, Scaling, Signals, decide, resume
from macroserve.operator import evidence, metrics
from macroserve.operator.alert_book import Alert, AlertBook
from macroserve.operator.names import Key
from macroserve.operator.observation import Observation
from macroserve.operator.simulations import Simulations
from macroserve.operator.target import Change, Target
from macroserve.sim.capacity import need

CALLS_FOR_MORE = ("MacroserveSLOAttainmentLow", "MacroserveQueuesLate")
METRICS_MISSING = "MacroserveMetricsMissing"


class Autoscaler:
    """All MacroInstances' memory of alerts and of what was simulated; lost with the process.

    wake: called as ``wake(namespace, name)`` when the answer of ``target`` may differ from now on:
        an alert has come, a simulation has ended. Called on the event loop.
    """

    def __init__(
        self,
        wake: Callable[[str, str], None],
        book: AlertBook | None = None,
        simulations: Simulations | None = None,
    ) -> None:
        self._wake = wake
        self._book = book or AlertBook()
        self._simulations = simulations or Simulations(lambda key: wake(*key))
        self._scalings: dict[Key, Scaling] = {}

    def note_alert(self, alert: Alert) -> None:
        """Of a MacroInstance that is there, or of none in particular."""
        if self._book.note(alert) and alert.about:
            self._wake(*alert.about)

    async def target(self, observation: Observation, load: LoadReport | None) -> Target:
        """What to plan for in this round; it never waits for a simulation.

        load: as the head reports it now, None when it does not answer. Without
        ``spec.autoscaling`` it is not looked at and need not be asked for.
        """
        key = Key(observation.namespace, observation.name)
        autoscaling = observation.manifest.spec.autoscaling
        if autoscaling is None:
            self._scalings.pop(key, None)
            self._simulations.forget(key)
            target = _as_specified(observation)
        else:
            target = self._autoscaled(key, autoscaling, observation, load)
        metrics.TARGET_INSTANCES.labels(*key).set(target.instances)
        metrics.READY_INSTANCES.labels(*key).set(evidence.num_ready(observation))
        return target

    def forget(self, namespace: str, name: str) -> None:
        """The MacroInstance is gone."""
        key = Key(namespace, name)
        self._scalings.pop(key, None)
        self._simulations.forget(key)
        self._book.forget(key)
        for gauge in (metrics.TARGET_INSTANCES, metrics.READY_INSTANCES):
            with contextlib.suppress(KeyError):
                gauge.remove(*key)

    async def stop(self) -> None:
        """End what is under way."""
        await self._simulations.stop()

    def _autoscaled(
        self,
        key: Key,
        autoscaling: Autoscaling,
        observation: Observation,
        load: LoadReport | None,
    ) -> Target:
        now = observation.now.timestamp()
        held = observation.status.get("targetInstances", observation.manifest.spec.instances)
        scaling = self._scalings.get(key)
        if scaling is None or scaling.target != held:
            scaling = resume(held, _moves(observation.status), now)
            self._simulations.forget(key)
        limits = _limits(autoscaling)
        signals = self._signals(key, observation, load, held, limits)
        decision, self._scalings[key] = decide(scaling, limits, signals, now)
        change = None
        if decision.target != held:
            self._simulations.forget(key)
            change = Change(observation.now, held, decision.target, decision.reason)
        is_known = not (signals.unknown or signals.deaf)
        return Target(decision.target, decision.reason, decision.able, is_known, change)

    def _signals(
        self,
        key: Key,
        observation: Observation,
        load: LoadReport | None,
        held: int,
        limits: Limits,
    ) -> Signals:
        firing = self._book.firing(key)
        ready = evidence.num_ready(observation)
        alert = next((name for name in CALLS_FOR_MORE if name in firing), None)
        deaf = None
        if METRICS_MISSING in firing:
            deaf = f"{METRICS_MISSING} fires."
        elif self._book.is_silent:
            deaf = "Nothing is heard from Alertmanager."
        unknown = evidence.unknown(observation, load)
        if unknown or load is None:
            return Signals(ready=ready, alert=alert, unknown=unknown, deaf=deaf)
        is_idle = evidence.is_idle(observation, load)
        return Signals(
            ready=ready,
            alert=alert,
            need=None if is_idle else self._need(key, observation, load, held, limits),
            idle=is_idle,
            struggling=evidence.is_struggling(observation),
            deaf=deaf,
        )

    def _need(
        self, key: Key, observation: Observation, load: LoadReport, held: int, limits: Limits
    ) -> Need | None:
        simulate = partial(_simulate, observation, load, held, limits)
        return self._simulations.need(key, simulate)


def _simulate(observation: Observation, load: LoadReport, held: int, limits: Limits) -> Need | None:
    """None before an instance has told what it is like."""
    design = evidence.design(observation, load)
    if design is None:
        return None
    return need(
        design,
        load,
        goal=observation.manifest.spec.slo.attainment,
        present=held,
        least=limits.least,
        most=limits.most,
        memory_s=limits.down_s,
        num_waiting=evidence.num_waiting(observation),
    )


def _as_specified(observation: Observation) -> Target:
    wanted = observation.manifest.spec.instances
    reason = f"spec.instances asks for {wanted}."
    before = observation.status.get("targetInstances")
    if before in (None, wanted):
        return Target(wanted, reason)
    return Target(wanted, reason, change=Change(observation.now, before, wanted, reason))


def _limits(autoscaling: Autoscaling) -> Limits:
    stabilization = autoscaling.stabilization
    return Limits(
        autoscaling.min_instances,
        autoscaling.max_instances,
        stabilization.up_s,
        stabilization.down_s,
    )


def _moves(status: Mapping[str, Any]) -> Iterator[Move]:
    for entry in status.get("scalingHistory", ()):
        at_s = datetime.fromisoformat(entry["time"]).timestamp()
        yield Move(at_s, entry["from"], entry["to"])
