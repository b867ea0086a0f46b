"""A cell scheduler's soft state: instances, statuses and decisions in flight.

All of it can be lost: a new ledger is rebuilt from handles and statuses.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec.structs import replace

from macroserve.core.routing.adapters import AdapterRecord
from macroserve.core.routing.decision import RouteDecision, RouteRequest
from macroserve.core.routing.prefixes import HeldKey, PrefixRecord
from macroserve.core.routing.queue_wait import LeastWaits, cell_queue_wait_s, least_waits
from macroserve.core.routing.route import route
from macroserve.core.routing.sessions import SessionRecord
from macroserve.core.status import UNHEARD, CellView, Ended, InstanceStatus, InstanceView, Pool
from macroserve.core.strategy import Strategy

IN_FLIGHT_TIMEOUT_S = 10.0
"""Seconds after which a decision that no status has acknowledged is dropped."""

TRIAL_TIMEOUT_S = 60.0
"""Seconds after which a trial without a reported end is dropped: its ingress may be gone."""


@dataclass(frozen=True, slots=True)
class _Trial:
    instance: str
    since_s: float


@dataclass(frozen=True, slots=True)
class _InFlight:
    instance: str
    since_s: float
    num_tokens: int
    prefill_s: float
    num_blocks: int


class CellLedger:
    """Router of one cell, which counts each decision as in flight until its instance reports it.

    A decision stops counting when a status lists the request as admitted, when it is settled or
    made again, when its instance leaves or restarts, or after IN_FLIGHT_TIMEOUT_S.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._views: dict[str, InstanceView] = {}
        self._incarnations: dict[str, int] = {}
        self._in_flight: dict[str, _InFlight] = {}  # by request id, oldest first
        self._trials: dict[str, _Trial] = {}  # by request id, oldest first
        self._last: RouteDecision | None = None
        self._adapters = AdapterRecord()
        self._prefixes = PrefixRecord()
        self._sessions = SessionRecord()
        self._finished = self._attained = self._prompt_tokens = self._cached_tokens = 0
        self._ended_by_class: dict[str, Ended] = {}
        self._decodes = self._decoded_tokens = 0
        self._lost_tokens = self._moved_tokens = 0
        self._refused = Counter[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._views

    @property
    def views(self) -> tuple[InstanceView, ...]:
        return tuple(self._views.values())

    def add(self, name: str, pool: Pool, max_num_seqs: int, incarnation: int = 0) -> None:
        """Add an instance, replace an older incarnation, or change the pool of the same one.

        An incarnation older than the known one is ignored.
        """
        known = self._incarnations.get(name, -1)
        if incarnation < known:
            return
        if incarnation > known:
            self._drop_all_at(name)
            self._incarnations[name] = incarnation
            self._views[name] = InstanceView(name, pool, UNHEARD, 0.0, max_num_seqs)
        else:
            self._views[name] = replace(self._views[name], pool=pool)

    def remove(self, name: str) -> bool:
        """Remove an instance; return whether the cell had it."""
        if name not in self._views:
            return False
        self._drop_all_at(name)
        del self._views[name], self._incarnations[name]
        return True

    def release(self, name: str) -> Sequence[HeldKey]:
        """Remove an instance that moves to another cell; return its cached prefixes for the ledger
        of that cell."""
        held = self._prefixes.held(name)
        self._moved_tokens += self._prefixes.forget(name)
        self.remove(name)
        return held

    def take_prefixes(self, name: str, held: Sequence[HeldKey]) -> None:
        """Add the cached prefixes of an instance that moved here."""
        self._prefixes.take_over(name, held)

    def set_pool(self, name: str, pool: Pool) -> bool:
        """Set an instance's pool; return whether the cell has it."""
        if name not in self._views:
            return False
        self._views[name] = replace(self._views[name], pool=pool)
        return True

    def observe(self, name: str, status: InstanceStatus, now: float, incarnation: int = 0) -> bool:
        """Apply a status and return whether it is new; of a late one, only ``admitted`` counts."""
        known = self._incarnations.get(name)
        if known is None or incarnation < known:
            return False
        if incarnation > known:
            self.add(name, self._views[name].pool, self._views[name].max_num_seqs, incarnation)
        for request_id in status.admitted:
            entry = self._in_flight.get(request_id)
            if entry and entry.instance == name:
                self._drop(request_id)
        view = self._views[name]
        if status.seq <= view.status.seq:
            return False
        if view.heard:
            self._finished += status.finished - view.status.finished
            self._attained += status.attained - view.status.attained
            for slo_class, ended in status.ended_by_class.items():
                before = view.status.ended_by_class.get(slo_class, Ended())
                so_far = self._ended_by_class.get(slo_class, Ended())
                self._ended_by_class[slo_class] = so_far + ended - before
            self._prompt_tokens += status.prompt_tokens - view.status.prompt_tokens
            self._cached_tokens += status.cached_tokens - view.status.cached_tokens
            self._decodes += status.decodes - view.status.decodes
            self._decoded_tokens += status.decoded_tokens - view.status.decoded_tokens
        self._views[name] = replace(view, status=status, as_of_s=now)
        self._prefixes.observe(name, status.prompt_tokens, status.cached_tokens)
        return True

    def assign(
        self, request: RouteRequest, now: float, *, ignore_constraints: bool = True
    ) -> RouteDecision:
        """Choose an instance, and count the request as in flight there.

        ignore_constraints: whether to take the request even if the instance violates the
            constraints; otherwise the decision then has no instance.
        """
        self._drop_timed_out(now)
        request_id, adapter = request.request.request_id, request.request.adapter
        self.settle(request_id)
        views = tuple(self._views.values())
        had_adapter_s = self._adapters.times(adapter)
        cached = self._prefixes.expected(request.prefix)
        decision = route(
            self._strategy,
            views,
            self._last,
            request,
            now,
            had_adapter_s,
            cached,
            self._sessions.holder(request.session),
        )
        if decision.instance is None:
            self._note_refusal(request, decision)
            return decision
        if decision.reason.in_turn:
            self._last = decision
        if not (decision.satisfied or ignore_constraints):
            self._note_refusal(request, decision)
            return dataclasses.replace(decision, instance=None)
        self._adapters.note(adapter, decision.instance, now)
        self._sessions.note(request.session, decision.instance)
        view = self._views[decision.instance]
        status = view.status
        num_prompt_tokens = request.request.num_prompt_tokens
        pool_tokens = status.num_blocks * status.block_size
        self._prefixes.note(view.name, request.prefix, num_prompt_tokens, pool_tokens)
        num_to_compute = num_prompt_tokens - decision.num_cached
        if request.trial:
            self._trials[request_id] = _Trial(view.name, now)
        self._in_flight[request_id] = entry = _InFlight(
            instance=view.name,
            since_s=now,
            num_tokens=request.num_tokens,
            prefill_s=num_to_compute * status.prefill_s_per_token,
            num_blocks=-(-request.num_tokens // status.block_size),
        )
        self._views[view.name] = replace(
            view,
            in_flight_requests=view.in_flight_requests + 1,
            in_flight_tokens=view.in_flight_tokens + entry.num_tokens,
            in_flight_prefill_s=view.in_flight_prefill_s + entry.prefill_s,
            in_flight_blocks=view.in_flight_blocks + entry.num_blocks,
            on_trial=view.on_trial or request.trial,
        )
        return decision

    def settle(self, request_id: str) -> None:
        """Drop a request that ended, failed to reach its instance or was refused, and end its
        trial."""
        if request_id in self._in_flight:
            self._drop(request_id)
        self._end_trial(request_id)

    @property
    def refused(self) -> Mapping[str, int]:
        """Return the refusals so far by ``RouteDecision.refusal``, including noted ones."""
        return dict(self._refused)

    def note_refused(self, by_reason: Mapping[str, int]) -> None:
        """Count requests that ingresses refused without asking the cell."""
        self._refused.update(by_reason)

    def _note_refusal(self, request: RouteRequest, decision: RouteDecision) -> None:
        if not request.request.probe:
            self._refused[decision.refusal] += 1

    @property
    def waiting_prefill_s(self) -> float:
        """Return the predicted seconds of all prefills waiting or in flight in the cell."""
        return sum(
            [v.status.waiting_prefill_s + v.in_flight_prefill_s for v in self._views.values()]
        )

    @property
    def least_waits(self) -> LeastWaits:
        return least_waits(self._views.values())

    @property
    def queue_wait_s(self) -> float | None:
        return cell_queue_wait_s(self._views.values())

    def cell_view(self, name: str) -> CellView:
        views = self._views.values()
        statuses = [view.status for view in views]
        running = sum(status.num_running for status in statuses)
        decoding = sum(status.num_decoding for status in statuses)
        ready = [status for status in statuses if not status.draining]
        return CellView(
            name=name,
            instances=tuple(self._views),
            high_priority=tuple(view.name for view in views if view.pool is Pool.HP),
            num_ready=len(ready),
            num_prefilling=running - decoding,
            num_decoding=decoding,
            num_waiting=sum(view.num_waiting for view in views),
            num_running=running,
            waiting_prefill_s=self.waiting_prefill_s,
            prefill_s_per_token=max((s.prefill_s_per_token for s in statuses), default=0.0),
            free_blocks=sum(v.status.free_blocks - v.in_flight_blocks for v in views),
            num_blocks=sum(status.num_blocks for status in statuses),
            pool_tokens=sum(status.num_blocks * status.block_size for status in statuses),
            decode_step_s=fmean([s.decode_step_s for s in ready]) if ready else 0.0,
            finished=self._finished,
            attained=self._attained,
            ended_by_class=dict(self._ended_by_class),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            decodes=self._decodes,
            decoded_tokens=self._decoded_tokens,
            lost_tokens=self._lost_tokens,
            moved_tokens=self._moved_tokens,
        )

    def _drop_all_at(self, name: str) -> None:
        self._adapters.forget(name)
        self._lost_tokens += self._prefixes.forget(name)
        for request_id in [i for i, entry in self._in_flight.items() if entry.instance == name]:
            self._drop(request_id)
        for request_id in [i for i, trial in self._trials.items() if trial.instance == name]:
            self._end_trial(request_id)

    def _end_trial(self, request_id: str) -> None:
        if trial := self._trials.pop(request_id, None):
            self._views[trial.instance] = replace(self._views[trial.instance], on_trial=False)

    def _drop_timed_out(self, now: float) -> None:
        while self._trials:
            oldest = next(iter(self._trials))
            if now - self._trials[oldest].since_s < TRIAL_TIMEOUT_S:
                break
            self._end_trial(oldest)
        while self._in_flight:
            oldest = next(iter(self._in_flight))
            if now - self._in_flight[oldest].since_s < IN_FLIGHT_TIMEOUT_S:
                return
            self._drop(oldest)

    def _drop(self, request_id: str) -> None:
        entry = self._in_flight.pop(request_id)
        view = self._views[entry.instance]
        left = view.in_flight_requests - 1
        # Rounding errors of the running sum must not outlive the last request.
        prefill_s = max(0.0, view.in_flight_prefill_s - entry.prefill_s) if left else 0.0
        self._views[entry.instance] = replace(
            view,
            in_flight_requests=left,
            in_flight_tokens=view.in_flight_tokens - entry.num_tokens,
            in_flight_prefill_s=prefill_s,
            in_flight_blocks=view.in_flight_blocks - entry.num_blocks,
        )
