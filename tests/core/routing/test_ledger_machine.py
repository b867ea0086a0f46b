"""A cell ledger loses no decision in flight under any sequence of events."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from support.in_flight import EMPTY, NOTHING, in_flight, request

from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.ledger import IN_FLIGHT_TIMEOUT_S, CellLedger
from macroserve.core.status import Pool
from macroserve.core.strategies import STRATEGIES


class LedgerMachine(RuleBasedStateMachine):
    """A comparison of any interleaving with a model of each request's instance and time."""

    names = st.sampled_from("abcd")
    assigned = Bundle("assigned")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.seq = 0
        self.members: dict[str, int] = {}
        self.in_flight: dict[str, tuple[str, float, RouteRequest]] = {}

    @initialize(name=st.sampled_from(sorted(STRATEGIES)))
    def begin(self, name: str) -> None:
        self.ledger = CellLedger(STRATEGIES[name])

    def forget(self, name: str) -> None:
        self.in_flight = {i: entry for i, entry in self.in_flight.items() if entry[0] != name}

    @rule(name=names, pool=st.sampled_from(Pool), incarnation=st.integers(0, 2))
    def add(self, name: str, pool: Pool, incarnation: int) -> None:
        self.ledger.add(name, pool, 64, incarnation)
        if incarnation > self.members.get(name, -1):
            self.members[name] = incarnation
            self.forget(name)

    @rule(name=names)
    def remove(self, name: str) -> None:
        assert self.ledger.remove(name) == (name in self.members)
        self.members.pop(name, None)
        self.forget(name)

    @rule(name=names, pool=st.sampled_from(Pool))
    def set_pool(self, name: str, pool: Pool) -> None:
        assert self.ledger.set_pool(name, pool) == (name in self.members)

    @rule(
        name=names,
        admitted=st.lists(assigned, max_size=3),
        incarnation=st.integers(0, 2),
        is_late=st.booleans(),
        draining=st.booleans(),
    )
    def observe(
        self, name: str, admitted: list[str], incarnation: int, is_late: bool, draining: bool
    ) -> None:
        self.seq += not is_late
        status = msgspec.structs.replace(
            EMPTY, seq=self.seq, admitted=tuple(admitted), draining=draining
        )
        self.ledger.observe(name, status, self.now, incarnation)
        known = self.members.get(name)
        if known is None or incarnation < known:
            return
        if incarnation > known:
            self.members[name] = incarnation
            self.forget(name)
        for request_id in admitted:
            if request_id in self.in_flight and self.in_flight[request_id][0] == name:
                del self.in_flight[request_id]

    @rule(
        target=assigned,
        request_id=st.sampled_from([f"r{i}" for i in range(8)]),
        num_tokens=st.integers(1, 3000),
        offloaded=st.booleans(),
        exclude=st.frozensets(names, max_size=2),
        elapsed_s=st.sampled_from([0.0, 0.1, 3.3, IN_FLIGHT_TIMEOUT_S]),
    )
    def assign(
        self,
        request_id: str,
        num_tokens: int,
        offloaded: bool,
        exclude: frozenset[str],
        elapsed_s: float,
    ) -> str:
        self.now += elapsed_s
        asked = replace(
            request(request_id, num_tokens, self.now), offloaded=offloaded, exclude=exclude
        )
        decision = self.ledger.assign(asked, self.now)
        self.in_flight.pop(request_id, None)
        self.in_flight = {
            i: entry
            for i, entry in self.in_flight.items()
            if self.now - entry[1] < IN_FLIGHT_TIMEOUT_S
        }
        if decision.instance is not None:
            assert decision.instance in self.members and decision.instance not in exclude
            self.in_flight[request_id] = (decision.instance, self.now, asked)
        return request_id

    @rule(request_id=assigned)
    def settle(self, request_id: str) -> None:
        self.ledger.settle(request_id)
        self.in_flight.pop(request_id, None)

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        assert {view.name for view in self.ledger.views} == set(self.members)
        for view in self.ledger.views:
            there = [r for name, _, r in self.in_flight.values() if name == view.name]
            assert view.in_flight_requests == len(there)
            assert view.in_flight_tokens == sum(r.num_tokens for r in there)
            assert view.in_flight_blocks == sum(-(-r.num_tokens // 16) for r in there)
            prefill_s = sum(r.request.num_prompt_tokens for r in there) * 0.001
            assert view.in_flight_prefill_s >= 0
            assert view.in_flight_prefill_s == pytest.approx(prefill_s)
            assert there or in_flight(view) == NOTHING


TestLedger = LedgerMachine.TestCase
