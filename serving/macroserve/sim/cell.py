"""One cell in virtual time: its router, its instances, and requests that arrive."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from statistics import fmean

from macroserve.core.batch import HandBackReason
from macroserve.core.request import Request
from macroserve.core.routing.decision import RouteDecision, RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.scaling.mitosis import high_priority_count
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.core.status import Pool
from macroserve.sim.device import SimRequest
from macroserve.sim.events import EventQueue
from macroserve.sim.instance import (
    MAX_RUN_STEPS,
    ActiveBatch,
    InstanceSpec,
    SimulatedInstance,
    StepOutcome,
)
from macroserve.sim.pipelined import PipelinedInstance
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.results import WHEN_DECIDED, RunResult, SloRule, StopRule, as_client
from macroserve.workload.arrivals import Arrival


class SimulatedCell:
    """Instances of one kind, the share ``high_priority_ratio`` of them in the HP pool.

    max_run_steps: decode steps that one event may stand for; with 1 each step is decided anew.
    num_iterations: what the instances' schedulers decided so far, together.
    """

    def __init__(
        self,
        engine: InstanceSpec,
        num_instances: int,
        high_priority_ratio: float = 0.0,
        max_run_steps: int = MAX_RUN_STEPS,
    ) -> None:
        self.num_iterations = 0
        self._max_iterations = sys.maxsize
        self._engine = engine
        self._max_run_steps = max_run_steps
        self._config = engine.config
        self._ledger = CellLedger(engine.config.strategy)
        self._lengths = LengthPredictor()
        self._instances: dict[str, SimulatedInstance] = {}
        self._events: EventQueue[Callable[[float], None]] = EventQueue()
        self._results = ResultCollector(0)
        pools = self._pools(num_instances, high_priority_ratio)
        for index, pool in enumerate(pools):
            instance = self._add(f"instance-{index}", pool)
            instance.policy.let_offload(Pool.HP in pools)

    def serve(
        self,
        arrivals: Sequence[Arrival],
        *,
        num_before: int = 0,
        slo_rule: SloRule = as_client,
        stop: StopRule = WHEN_DECIDED,
        max_iterations: int | None = None,
    ) -> RunResult:
        """Serve ``arrivals``, in the order of their times; the first ``num_before`` do not count.

        Ends as ``stop`` says, or after ``max_iterations`` of the instances together.
        """
        self._results = ResultCollector(len(arrivals) - num_before, slo_rule, stop)
        self._max_iterations = max_iterations or sys.maxsize
        kv_uses: list[float] = []
        for index, arrival in enumerate(arrivals):
            self._run_until(arrival.at_s)
            if self._is_over:
                break
            record = self._record(index, arrival)
            if index >= num_before:
                self._results.expect(record)
            if self._takes(record.request):
                self._place(record, arrival.at_s)
            else:
                self._results.refused(record, arrival.at_s)
            if index >= num_before and stop.to_the_end:
                # Poisson arrivals see time averages.
                kv_uses.append(fmean(instance.kv_use for instance in self._instances.values()))
        self._run_until(inf)
        return replace(self._results.outcome, kv_use=fmean(kv_uses) if kv_uses else 0.0)

    @property
    def _is_over(self) -> bool:
        return self._results.is_complete or self.num_iterations >= self._max_iterations

    def _run_until(self, moment_s: float) -> None:
        """Nothing that happens at ``moment_s`` itself happens yet."""
        while self._events.next_s < moment_s and not self._is_over:
            now, happen = self._events.pop()
            self._results.pass_time(now)
            happen(now)

    def _pools(self, num_instances: int, ratio: float) -> list[Pool]:
        num_high = high_priority_count(num_instances, ratio)
        return [Pool.HP if index < num_high else Pool.LP for index in range(num_instances)]

    def _add(self, name: str, pool: Pool, now: float = 0.0) -> SimulatedInstance:
        instance = _instance(name, pool, self._engine, self._max_run_steps)
        self._instances[name] = instance
        self._home(name).add(name, pool, self._config.max_num_seqs)
        self._report(instance, now)
        return instance

    def _home(self, name: str) -> CellLedger:
        """Of the cell that an instance is in."""
        return self._ledger

    def _assign(self, request: RouteRequest, now: float) -> RouteDecision:
        return self._ledger.assign(request, now)

    def _takes(self, request: Request) -> bool:
        """The endpoint refuses a prompt that leaves no room for a token before it is routed."""
        return request.num_prompt_tokens < self._config.max_model_len

    def _record(self, index: int, arrival: Arrival) -> SimRequest:
        """A response ends where the model's length does, as at the endpoint."""
        num_left = max(1, self._config.max_model_len - arrival.num_prompt_tokens)
        request = Request(
            f"request-{index}",
            arrival.at_s,
            arrival.num_prompt_tokens,
            min(arrival.max_new_tokens or num_left, num_left),
            self._config.slo,
            expected_tokens=arrival.expected_tokens,
        )
        return SimRequest(request, min(arrival.num_output_tokens, request.max_new_tokens))

    def _place(
        self,
        record: SimRequest,
        now: float,
        *,
        offloaded: bool = False,
        exclude: frozenset[str] = frozenset(),
    ) -> None:
        for instance in self._instances.values():
            # As a rule it is in the middle of a step: of many instances, most are not called.
            if instance.run and instance.run.ends_s[0] <= now:
                self._settle(instance, now)
        request = record.request
        route = RouteRequest(request, self._lengths.predict(request), offloaded, exclude)
        name = self._assign(route, now).instance
        if name is None:
            name = self._assign(replace(route, exclude=frozenset()), now).instance
        assert name is not None, "a cell has instances, and none of them drains"
        instance = self._instances[name]
        if instance.add(record, now):
            self._home(name).settle(request.request_id)
            self._results.refused(record, now)
            return
        self._report(instance, now)
        self._go_on(instance, now)

    def _go_on(self, instance: SimulatedInstance, now: float) -> None:
        """With what has come just now: at once, or when the present step has ended."""
        if instance.run is None:
            self._begin(instance, now)
        else:
            self._await_end(instance, instance.run)

    def _await_end(self, instance: SimulatedInstance, run: ActiveBatch) -> None:
        self._events.put(run.ends_s[-1], partial(self._end, instance, run))

    def _end(self, instance: SimulatedInstance, run: ActiveBatch, now: float) -> None:
        """Of a run, unless it was cut short and ended before."""
        if instance.run is run and now >= run.ends_s[-1]:
            self._settle(instance, now)

    def _settle(self, instance: SimulatedInstance, now: float) -> None:
        """Bring an instance to ``now``: what has ended by then, and what it runs next."""
        settled = instance.settle(now)
        if settled is None:
            return
        for record in settled.finished:
            self._lengths.observe(record.request, record.num_emitted)
            self._results.ended(record)
        self._report(instance, settled.end_s)
        self._after(instance, settled)
        if instance.run is None:
            self._begin(instance, settled.end_s)

    def _after(self, instance: SimulatedInstance, settled: StepOutcome) -> None:
        """What else comes of it."""

    def _begin(self, instance: SimulatedInstance, now: float) -> None:
        self.num_iterations += 1
        left = instance.begin(now)
        if instance.run is None:
            self._report(instance, now)
        else:
            self._await_end(instance, instance.run)
        for record, reason in left:
            if reason is HandBackReason.DROP:
                self._results.refused(record, now)
            else:
                self._place(record, now, offloaded=True, exclude=frozenset({instance.name}))

    def _report(self, instance: SimulatedInstance, now: float) -> None:
        self._home(instance.name).observe(instance.name, instance.status(now), now)


def _instance(name: str, pool: Pool, engine: InstanceSpec, max_run_steps: int) -> SimulatedInstance:
    if engine.pipeline is None:
        return SimulatedInstance(name, pool, engine, max_run_steps)
    return PipelinedInstance(name, pool, engine, engine.pipeline, max_run_steps)
