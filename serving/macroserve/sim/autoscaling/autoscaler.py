"""Autoscaler of a simulated fleet, with the operator's signals, capacity estimate, decision and
plan; only the ratio of the pools is fixed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from macroserve.core.routing.queue_wait import is_late
from macroserve.core.scaling.autoscale import (
    CapacityEstimate,
    Limits,
    LoadSignals,
    TargetChange,
    decide,
    resume,
)
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.core.scaling.load import LoadReport
from macroserve.core.scaling.signals import (
    is_below_target,
    is_idle,
    load_signals,
    response_s,
    uncounted,
)
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.status import Ended
from macroserve.sim.autoscaling.alerts import EVALUATION_S, MINUTE_S, Alerts, Ending
from macroserve.sim.autoscaling.fleet import AutoscaledFleet
from macroserve.sim.autoscaling.goals import Goals
from macroserve.sim.autoscaling.timeline import ExplainedChange, Moment, Timeline
from macroserve.sim.capacity.capacity import need
from macroserve.sim.capacity.scale_down_check import InstanceModel
from macroserve.sim.device import SimRequest
from macroserve.sim.fleet_control import FleetControl
from macroserve.sim.instance import FixedLatencyModel
from macroserve.sim.results import RunResult, SloRule

TAKES_S = 3.0
"""Duration of the operator's simulation of a load, seconds; see ``capacity.need``."""

EVERY_S = 15.0
"""Time from an estimate to the start of the next, seconds, as in the operator while its simulations
take less than a quarter of it."""


@dataclass(frozen=True, slots=True)
class _Estimate:
    found: CapacityEstimate
    known_from_s: float


class Estimates:
    """Successive estimates, each valid until the next one is known."""

    def __init__(self) -> None:
        self._present: CapacityEstimate | None = None
        self._coming: _Estimate | None = None
        self._next_s = 0.0

    def latest(
        self, estimate: Callable[[], CapacityEstimate], now: float
    ) -> CapacityEstimate | None:
        """Return the last known estimate, if any, and start another when due.

        estimate: returns an estimate of the present load.
        """
        if self._coming and self._coming.known_from_s <= now:
            self._present, self._next_s = self._coming.found, now + EVERY_S
            self._coming = None
        if self._coming is None and now >= self._next_s:
            self._coming = _Estimate(estimate(), now + TAKES_S)
        return self._present

    def forget(self) -> None:
        """Drop the last estimate and a started one, which assume another number of instances."""
        self._present = self._coming = None
        self._next_s = 0.0


class SimulatedAutoscaler(FleetControl):
    """Autoscaler that acts whenever the alert rules are evaluated, about as often as the operator.

    desired: initial fleet.
    start_s: start time of an instance as known to the autoscaler, seconds.
    """

    interval_s = EVALUATION_S

    def __init__(
        self,
        fleet: AutoscaledFleet,
        config: InstanceConfig,
        desired: DesiredFleet,
        limits: Limits,
        goals: Goals,
        start_s: float,
        slo_rule: SloRule,
    ) -> None:
        self._fleet = fleet
        self._config = config
        self._desired = desired
        self._limits = limits
        self._goals = goals
        self._start_s = start_s
        self._slo_rule = slo_rule
        self._scaling = resume(desired.desired_instances, (), 0.0)
        self._alerts = Alerts(goals.by_class)
        self._estimates = Estimates()
        self._recent: deque[Ending] = deque()
        self._changes: list[ExplainedChange] = []
        self._moments: list[Moment] = [self._moment(0.0)]

    def ended(self, request: SimRequest, now: float, *, refused: bool) -> None:
        attained = not refused and self._slo_rule(request)
        ending = Ending(now, request.request.slo_class, attained)
        self._recent.append(ending)
        self._alerts.note(ending)

    def read(self, known: RunResult, now: float) -> None:
        """Decide on the target and take the next actions towards it."""
        self._fleet.reconcile(self._desired, now)  # started instances begin to serve
        load = self._fleet.load(now)
        before = self._scaling.target
        decision, self._scaling = decide(self._scaling, self._limits, self._signals(load, now), now)
        if decision.target != before:
            change = TargetChange(now, before, decision.target)
            self._changes.append(ExplainedChange(change, decision.reason))
            self._estimates.forget()
            self._desired = replace(self._desired, desired_instances=decision.target)
        self._fleet.reconcile(self._desired, now)
        moment = self._moment(now)
        if replace(moment, at_s=self._moments[-1].at_s) != self._moments[-1]:
            self._moments.append(moment)

    def timeline(self, end_s: float) -> Timeline:
        moments = tuple(each for each in self._moments if each.at_s <= end_s)
        changes = tuple(each for each in self._changes if each.change.at_s <= end_s)
        return Timeline(end_s, moments, changes, self._fleet.num_failed)

    def _moment(self, now: float) -> Moment:
        fleet = self._fleet
        return Moment(now, self._scaling.target, fleet.num_ready, fleet.num_existing)

    def _signals(self, load: LoadReport, now: float) -> LoadSignals:
        views = self._fleet.views
        unknown = uncounted(load)
        idle, estimate = False, None
        if not unknown and not (idle := is_idle(load, views)):
            estimate = self._estimates.latest(lambda: self._estimate(load), now)
        return load_signals(
            ready=self._fleet.num_ready,
            firing=self._alerts.evaluate(self._is_late, now),
            alerts_missing=None,
            unknown=unknown,
            idle=idle,
            below_target=is_below_target(self._ended(now), self._goals.by_class),
            need=estimate,
            start_s=self._start_s,
            response_s=response_s(load, self._config.slo.tpot_s),
        )

    def _estimate(self, load: LoadReport) -> CapacityEstimate:
        assert load.model and load.device and load.coefficients, "reported by an instance"
        latency = FixedLatencyModel(load.model, load.device, load.coefficients)
        instances = InstanceModel(
            self._config,
            latency,
            self._desired.high_priority_ratio,
            self._desired.bounds.upper,
            self._goals.slo_classes,
            self._goals.attainment,
        )
        return need(
            instances,
            load,
            goal=self._goals.attainment,
            present=self._scaling.target,
            least=self._limits.least,
            most=self._limits.most,
            start_s=self._start_s,
            num_waiting=sum(view.num_waiting for view in self._fleet.views),
        )

    @property
    def _is_late(self) -> bool:
        """Return whether a request of the default class would be late in every cell."""
        ttft_s = self._config.slo.ttft_s
        return all(is_late(ledger.least_waits, ttft_s) for ledger in self._fleet.ledgers)

    def _ended(self, now: float) -> dict[str, Ended]:
        """Return the requests that ended in the last minute, by class."""
        while self._recent and self._recent[0].at_s <= now - MINUTE_S:
            self._recent.popleft()
        found: dict[str, Ended] = {}
        for each in self._recent:
            so_far = found.get(each.slo_class, Ended())
            found[each.slo_class] = so_far + Ended(1, int(each.attained))
        return found
