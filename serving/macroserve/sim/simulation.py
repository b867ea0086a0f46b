"""The event loop: requests arrive and batches end in virtual time."""

import heapq
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

from macroserve.core.batch import HandBackReason
from macroserve.core.request import DEFAULT_CLASS, Request
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.sim.cache_bound import CacheBound
from macroserve.sim.device import SimRequest
from macroserve.sim.fleet_control import FleetControl
from macroserve.sim.instance import ActiveBatch, InstanceSpec, SimulatedInstance, StepOutcome
from macroserve.sim.prefixes import prefix_keys
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.results import WHEN_DECIDED, RunResult, SloRule, StepTotals, StopRule, as_client
from macroserve.sim.router import CellRouter, Router, cell_instances
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve.workload.arrivals import Arrival

EventT = TypeVar("EventT")


class EventQueue(Generic[EventT]):
    """Events sorted by time, then by order of insertion."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, EventT]] = []
        self._num_put = 0

    @property
    def next_s(self) -> float:
        """Return the time of the next event, infinite if there is none."""
        return self._heap[0][0] if self._heap else inf

    def put(self, at_s: float, event: EventT) -> None:
        heapq.heappush(self._heap, (at_s, self._num_put, event))
        self._num_put += 1

    def pop(self) -> tuple[float, EventT]:
        at_s, _, event = heapq.heappop(self._heap)
        return at_s, event


class ArrivalDue(NamedTuple):
    """Arrival of a request: one of the load, or a later turn of its conversation."""

    arrival: Arrival
    number: int
    """Number of the load's arrival."""
    turn: int
    """Number of the turn, from 0."""
    counts: bool
    """Whether the result counts."""


class Simulation:
    """Instances behind a router, in virtual time.

    config: configuration of the instances.
    control: rule by which the fleet changes, if it does.
    trace: collector of all events, if wanted.
    """

    def __init__(
        self,
        router: Router,
        config: InstanceConfig,
        *,
        control: FleetControl | None = None,
        trace: SimulationTrace | None = None,
    ) -> None:
        self.router = router
        self.num_iterations = 0
        """Decisions of all instances' schedulers so far."""
        self._max_iterations = sys.maxsize
        self._config = config
        self._control = control
        self._trace = trace
        self._lengths = LengthPredictor()
        self._events: EventQueue[Callable[[float], None]] = EventQueue()
        """Functions of the time at which they are called."""
        self._results = ResultCollector(0)
        self._kv_uses: list[float] | None = None
        """Use of the caches at each arrival, if sampled."""
        self._steps: dict[str, StepTotals] = {}
        """Totals by instance of the steps that count; empty while none does."""
        self._cache_bound: CacheBound | None = None
        """Cache to compare the instances' prefix caches with, if wanted."""
        self._conversations: dict[str, ArrivalDue] = {}
        """Requests under way that are followed by another turn, by id."""
        if control is not None:
            self._events.put(control.interval_s, partial(self._read, control))

    def serve(
        self,
        arrivals: Sequence[Arrival],
        *,
        num_before: int = 0,
        slo_rule: SloRule = as_client,
        stop: StopRule = WHEN_DECIDED,
        max_iterations: int | None = None,
    ) -> RunResult:
        """Serve ``arrivals``, sorted by time, until ``stop`` or ``max_iterations`` of all instances
        together. The first ``num_before`` arrivals do not count."""
        arrivals = [arrival.within(self._config.max_model_len) for arrival in arrivals]
        num_counted = sum([arrival.num_requests for arrival in arrivals[num_before:]])
        self._results = ResultCollector(num_counted, slo_rule, stop)
        self._max_iterations = max_iterations or sys.maxsize
        self._kv_uses = [] if stop.to_the_end else None
        num_blocks = sum(each.num_cache_blocks for each in self.router.instances.values())
        if stop.to_the_end and num_blocks:
            self._cache_bound = CacheBound(num_blocks, self._config.block_size)
        for index, arrival in enumerate(arrivals):
            self._run_until(arrival.at_s)
            if self._is_over:
                break
            self._arrive(ArrivalDue(arrival, index, 0, index >= num_before), arrival.at_s)
            if stop.to_the_end and index == num_before:
                self._steps = dict.fromkeys(self.router.instances, StepTotals())
        steps, self._steps = self._steps, {}
        self._run_until(inf)
        return replace(
            self._results.outcome,
            kv_use=fmean(self._kv_uses) if self._kv_uses else 0.0,
            steps=tuple(steps.values()),
            steps_s=arrivals[-1].at_s - arrivals[num_before].at_s if steps else 0.0,
            prefix_cache_hit_ratio=self.router.prefix_cache_hit_ratio,
            one_cache_hit_ratio=self._cache_bound.hit_ratio if self._cache_bound else None,
        )

    @property
    def _is_over(self) -> bool:
        return self._results.is_complete or self.num_iterations >= self._max_iterations

    def _run_until(self, moment_s: float) -> None:
        """Run all events before ``moment_s``, none at ``moment_s`` itself."""
        while self._events.next_s < moment_s and not self._is_over:
            now, event = self._events.pop()
            self._results.pass_time(now)
            event(now)

    def _arrive(self, due: ArrivalDue, now: float) -> None:
        request = self._request(due)
        if due.counts:
            self._results.expect(request)
        if due.arrival.turns:
            self._conversations[request.request.request_id] = due
        if request.request.num_prompt_tokens < self._config.max_model_len:
            self._place(request, now)
        else:  # endpoints refuse prompts without room for a token
            self._refuse(request, now)
        if due.counts and self._kv_uses is not None:
            # Poisson arrivals see time averages.
            instances = self.router.instances.values()
            self._kv_uses.append(fmean([instance.kv_use for instance in instances]))

    def _request(self, due: ArrivalDue) -> SimRequest:
        """Return the request that arrives. A response ends at the model's maximum length, as at the
        endpoint."""
        arrival = due.arrival
        num_left = max(1, self._config.max_model_len - arrival.num_prompt_tokens)
        request = Request(
            f"request-{due.number}" + (f".{due.turn}" if due.turn else ""),
            arrival.at_s,
            arrival.num_prompt_tokens,
            min(arrival.max_new_tokens or num_left, num_left),
            arrival.slo_class.slo if arrival.slo_class else self._config.slo,
            expected_tokens=arrival.expected_tokens,
            slo_class=arrival.slo_class.name if arrival.slo_class else DEFAULT_CLASS,
        )
        num_output = min(arrival.num_output_tokens, request.max_new_tokens)
        return SimRequest(
            request, num_output, arrival.block_ids, arrival.block_tokens, arrival.is_open
        )

    def _place(
        self,
        request: SimRequest,
        now: float,
        *,
        offloaded: bool = False,
        exclude: frozenset[str] = frozenset(),
    ) -> None:
        for instance in self.router.instances.values():
            # Most of many instances are in the middle of a step and are not called.
            if instance.active and instance.active.ends_s[0] <= now:
                self._advance(instance, now)
        known = request.request
        route = RouteRequest(
            known,
            self._lengths.predict(known),
            offloaded,
            exclude,
            prefix=prefix_keys(
                known.num_prompt_tokens, request.block_ids, request.block_tokens, request.is_open
            ),
        )
        name = self.router.assign(route, now)
        if name is None:
            name = self.router.assign(replace(route, exclude=frozenset()), now)
        assert name is not None, "a cell has instances, and none of them drains"
        instance = self.router.instances[name]
        if instance.add(request, now):
            self.router.ledger(name).settle(known.request_id)
            self._refuse(request, now)
            return
        if self._cache_bound is not None and not offloaded:
            self._cache_bound.take(request)
        self.router.report(instance, now)
        self._go_on(instance, now)

    def _refuse(self, request: SimRequest, now: float) -> None:
        self._results.refused(request, now)
        if self._control is not None:
            self._control.ended(request, now, refused=True)
        due = self._conversations.pop(request.request.request_id, None)
        if due is not None and due.counts:  # without a response, the user does not continue
            self._results.give_up(len(due.arrival.turns))
        if self._trace is not None:
            self._trace.refused(request, now)

    def _finish(self, request: SimRequest) -> None:
        self._lengths.observe(request.request, request.num_emitted)
        if self._control is not None:
            self._control.ended(request, request.last_s, refused=False)
        self._results.ended(request)
        due = self._conversations.pop(request.request.request_id, None)
        if due is not None:
            arrival = due.arrival.next_turn(request.last_s, request.num_tokens)
            following = ArrivalDue(arrival, due.number, due.turn + 1, due.counts)
            self._events.put(arrival.at_s, partial(self._arrive, following))

    def _go_on(self, instance: SimulatedInstance, now: float) -> None:
        """Begin a batch with the new requests now or after the current step."""
        if instance.active is None:
            self._begin(instance, now)
        else:
            self._await_end(instance, instance.active)

    def _await_end(self, instance: SimulatedInstance, batch: ActiveBatch) -> None:
        self._events.put(batch.ends_s[-1], partial(self._end, instance, batch))

    def _end(self, instance: SimulatedInstance, batch: ActiveBatch, now: float) -> None:
        """Process the end of a batch, unless it was truncated."""
        if instance.active is batch and now >= batch.ends_s[-1]:
            self._advance(instance, now)

    def _advance(self, instance: SimulatedInstance, now: float) -> None:
        """Process an instance's steps that have ended by ``now``, and begin its next batch."""
        outcome = instance.advance_to(now)
        if outcome is not None:
            self._take_in(instance, outcome)
            if instance.active is None:
                self._begin(instance, outcome.end_s)

    def _take_in(self, instance: SimulatedInstance, outcome: StepOutcome) -> None:
        """Count the outcome of an instance's steps, and report its status."""
        for request in outcome.finished:
            self._finish(request)
        if so_far := self._steps.get(instance.name):
            self._steps[instance.name] = so_far.plus(outcome)
        if self._trace is not None:
            self._trace.stepped(instance.name, outcome)
        self.router.report(instance, outcome.end_s)

    def _begin(self, instance: SimulatedInstance, now: float) -> None:
        self.num_iterations += 1
        handed_back = instance.begin(now)
        if instance.active is None:
            self.router.report(instance, now)
        else:
            self._await_end(instance, instance.active)
        for request, reason in handed_back:
            if reason is HandBackReason.DROP:
                self._refuse(request, now)
            else:
                self._place(request, now, offloaded=True, exclude=frozenset({instance.name}))

    def _read(self, control: FleetControl, now: float) -> None:
        for instance in self.router.instances.values():
            self._advance(instance, now)
        control.read(self._results.outcome, now)
        self._events.put(now + control.interval_s, partial(self._read, control))


def single_cell(
    spec: InstanceSpec,
    num_instances: int,
    high_priority_ratio: float = 0.0,
    *,
    trace: SimulationTrace | None = None,
) -> Simulation:
    """Return a simulation of one cell."""
    instances = cell_instances(spec, num_instances, high_priority_ratio)
    return Simulation(CellRouter(instances), spec.config, trace=trace)
