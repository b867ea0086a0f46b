"""A request has a limited number of attempts, and unreachable instances are avoided."""

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.request import Request, Slo
from macroserve.core.routing.attempts import (
    AVOID_BACKOFF,
    MAX_BROKEN,
    MAX_BROKEN_IN_ALL,
    MAX_PROBATION_S,
    MIN_PROBATION_S,
    RETRY_BACKOFF,
    TRY_S,
    Attempts,
    AvoidList,
    InstanceRun,
)
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.ledger import CellLedger
from macroserve.core.status import InstanceStatus, Pool
from macroserve.core.strategies import strategy

A, B, C, D = (InstanceRun(name, 1) for name in "abcd")


def broken(*breaks: tuple[InstanceRun, float]) -> Attempts:
    attempts = Attempts()
    for run, lasted_s in breaks:
        attempts = attempts.broken(run, lasted_s)
    return attempts


@pytest.mark.parametrize(
    ("runs", "explained", "suspect", "over"),
    [
        ((), (), False, False),
        ((A,), (), False, False),
        ((A, B), (), True, False),
        ((A, B, C), (), True, True),
        ((A, B, C), (C,), True, False),
        ((A, B, C), (A, B, C), False, False),
        ((A, B), (InstanceRun("a", 2),), True, False),  # another incarnation
        ((A,) * MAX_BROKEN_IN_ALL, (A,), False, True),
    ],
)
def test_attempts_that_break_instances_are_limited(
    runs: tuple[InstanceRun, ...], explained: tuple[InstanceRun, ...], suspect: bool, over: bool
) -> None:
    attempts = broken(*((run, 1.0) for run in runs))
    assert attempts.is_suspect(explained) is suspect
    assert attempts.is_over(explained) is over


def test_attempts_handed_back_or_unreachable_do_not_count_as_broken() -> None:
    attempts = Attempts()
    for _ in range(10):
        attempts = attempts.handed_back("a").unreachable("b")
    assert not attempts.is_suspect(()) and not attempts.is_over(())
    assert attempts.failed == {"a", "b"}


def test_back_off_after_unreachable_instances_grows_to_a_maximum() -> None:
    attempts, waits = Attempts(), []
    for _ in range(20):
        attempts = attempts.unreachable("a")
        waits.append(attempts.back_off_s)
    assert waits[:5] == [0.0, 0.0, 0.1, 0.2, 0.4]
    assert waits == sorted(waits) and waits[-1] == RETRY_BACKOFF.max_s
    assert attempts.handed_back("a").back_off_s == 0.0


@pytest.mark.parametrize(
    ("lasted_s", "probation_s"),
    [
        ((0.1, 9.0), MIN_PROBATION_S),
        ((5.0, 4.0), 8.0),
        ((500.0, 600.0), MAX_PROBATION_S),
    ],
)
def test_probation_after_breaks_follows_the_shortest(
    lasted_s: tuple[float, float], probation_s: float
) -> None:
    assert broken((A, lasted_s[0]), (B, lasted_s[1])).probation_s(()) == probation_s


# -- a fleet in virtual time

STEP_S = 0.1
RESTART_S = 6.0


@dataclass
class Client:
    """The client runs one request."""

    name: str
    left_s: float
    kill_after_s: float | None = None
    """Seconds into an attempt after which its instance breaks; None for a bystander."""
    attempts: Attempts = field(default_factory=Attempts)
    on: str | None = None
    since_s: float = 0.0
    trial: bool = False
    wait_until_s: float = 0.0
    outcome: str = ""


class Fleet:
    """The fleet has instances under one cell ledger, and clients that follow ``Attempts`` like an
    ingress."""

    def __init__(self, num_instances: int, policy: str) -> None:
        self.now = 0.0
        self.ledger = CellLedger(strategy(policy))
        self.back_s: dict[str, float] = {}
        self.incarnations = {f"i{i}": 1 for i in range(num_instances)}
        self.explained: set[InstanceRun] = set()
        self.num_broken = 0
        self.seq = 0
        for name in self.incarnations:
            self.ledger.add(name, Pool.LP, 64, 1)

    def step(self, clients: list[Client]) -> None:
        self.now += STEP_S
        self._come_back()
        self._report(clients)
        for client in clients:
            if client.on is None and not client.outcome and self.now >= client.wait_until_s:
                self._place(client)
        self._run(clients)

    def _come_back(self) -> None:
        for name in [name for name, at in self.back_s.items() if at <= self.now]:
            del self.back_s[name]
            self.incarnations[name] += 1
            self.ledger.add(name, Pool.LP, 64, self.incarnations[name])

    def _report(self, clients: list[Client]) -> None:
        self.seq += 1
        for name in self.incarnations.keys() - self.back_s.keys():
            here = [client for client in clients if client.on == name]
            status = InstanceStatus(
                self.seq,
                num_running=len(here),
                prefill_s_per_token=0.0001,
                num_blocks=1000,
                free_blocks=1000 - len(here),
                admitted=tuple(client.name for client in here),
            )
            self.ledger.observe(name, status, self.now, self.incarnations[name])

    def _place(self, client: Client) -> None:
        client.trial = client.attempts.is_suspect(self.explained)
        body = Request(client.name, self.now, 20, 64, Slo(ttft_s=5.0, tpot_s=0.1))
        for exclude in (client.attempts.failed, frozenset[str]()):
            request = RouteRequest(body, 20, exclude=exclude, trial=client.trial)
            client.on = self.ledger.assign(request, self.now).instance
            if client.on:
                client.since_s = self.now
                return

    def _run(self, clients: list[Client]) -> None:
        for client in clients:
            if client.on is None:
                continue
            held_s = self.now - client.since_s
            if client.kill_after_s is not None and held_s >= client.kill_after_s:
                self._break(client.on, clients)
                continue
            client.left_s -= STEP_S
            if client.trial and held_s > client.attempts.probation_s(self.explained):
                client.trial = False
                self.ledger.settle(client.name)
            if client.left_s <= 0 and client.kill_after_s is None:
                client.outcome, client.on = "whole", None
                self.ledger.settle(client.name)

    def _break(self, name: str, clients: list[Client]) -> None:
        self.num_broken += 1
        self.back_s[name] = self.now + RESTART_S
        run = InstanceRun(name, self.incarnations[name])
        here = [client for client in clients if client.on == name]
        self.ledger.remove(name)
        for client in here:
            client.attempts = client.attempts.broken(run, self.now - client.since_s)
            client.on = None
            if client.trial and client.attempts.is_over(self.explained):
                client.outcome = "ended"
                self.explained |= {b.run for b in client.attempts.counted(self.explained)}
        for client in here:
            if not client.outcome and client.attempts.is_over(self.explained):
                client.outcome = "ended"


@given(
    seed=st.integers(0, 10**6),
    num_poisons=st.integers(1, 3),
    num_bystanders=st.integers(0, 40),
    policy=st.sampled_from(["unified", "vllm", "ecoserve"]),
    apart_s=st.sampled_from([30.0, 60.0]),
)
def test_requests_beside_poisonous_ones_complete(
    seed: int, num_poisons: int, num_bystanders: int, policy: str, apart_s: float
) -> None:
    chance = random.Random(seed)
    fleet = Fleet(4, policy)
    bystanders = [Client(f"b{i}", chance.uniform(0.5, 90)) for i in range(num_bystanders)]
    for client in bystanders:
        client.wait_until_s = chance.uniform(0, 20)
    poisons = [
        Client(
            f"p{i}",
            1e9,
            chance.choice([0.0, 0.3, 1.5]),
            wait_until_s=5 + i * (apart_s + chance.random()),
        )
        for i in range(num_poisons)
    ]
    clients = [*bystanders, *poisons]
    while not all(client.outcome for client in clients):
        fleet.step(clients)
        assert fleet.now < 1500, "somebody waits for ever"
    assert [client.outcome for client in poisons] == ["ended"] * num_poisons
    assert all(len(client.attempts.breaks) == MAX_BROKEN for client in poisons)
    assert fleet.num_broken == MAX_BROKEN * num_poisons
    # One poisonous request takes nobody along. Of several that come within a minute, each further
    # one may: breaks that nobody has explained yet count against whoever was beside both.
    lost = [client.name for client in bystanders if client.outcome != "whole"]
    assert len(lost) < num_poisons
    assert not any(view.on_trial for view in fleet.ledger.views)


def test_poisonous_requests_together_break_at_most_three_instances_each() -> None:
    fleet = Fleet(4, "vllm")
    poisons = [Client(f"p{i}", 1e9, 0.3) for i in range(3)]
    bystanders = [Client(f"b{i}", 40.0) for i in range(20)]
    while not all(client.outcome for client in poisons + bystanders):
        fleet.step(bystanders + poisons)
        assert fleet.now < 600
    assert fleet.num_broken <= MAX_BROKEN * len(poisons)
    assert {client.outcome for client in bystanders} == {"whole"}


def test_trial_ends_with_a_new_incarnation_of_its_instance() -> None:
    ledger = CellLedger(strategy("vllm"))
    ledger.add("a", Pool.LP, 64, 1)
    status = InstanceStatus(1, num_blocks=10, free_blocks=10)
    ledger.observe("a", status, 0.0, 1)
    body = Request("r", 0.0, 20, 64, Slo(ttft_s=5.0, tpot_s=0.1))
    assert ledger.assign(RouteRequest(body, 20, trial=True), 0.0).instance == "a"
    assert ledger.views[0].on_trial
    ledger.observe("a", msgspec.structs.replace(status, seq=2), 1.0, 2)
    assert not ledger.views[0].on_trial
    ledger.settle("r")
    assert not ledger.views[0].on_trial


def test_trial_goes_on_while_its_instance_gets_other_requests() -> None:
    ledger = CellLedger(strategy("vllm"))
    ledger.add("a", Pool.LP, 64)
    ledger.observe("a", InstanceStatus(1, num_blocks=10, free_blocks=10), 0.0)
    first, second, other = (
        Request(name, 0.0, 20, 64, Slo(ttft_s=5.0, tpot_s=0.1))
        for name in ("first", "second", "other")
    )
    ledger.assign(RouteRequest(first, 20, trial=True), 0.0)
    assert ledger.assign(RouteRequest(other, 20), 0.0).instance == "a", "there is no other"
    assert ledger.assign(RouteRequest(second, 20, trial=True), 0.0).instance is None
    ledger.settle("first")
    assert ledger.assign(RouteRequest(second, 20, trial=True), 0.0).instance == "a"


def test_avoided_instance_after_its_time_is_tried_by_one_request() -> None:
    avoid = AvoidList()
    avoid.note(A, 0.0)
    assert avoid.names([A, B], AVOID_BACKOFF.first_s - 0.1) == {"a"}
    assert avoid.names([A, B], AVOID_BACKOFF.first_s) == set()
    assert avoid.names([A, B], AVOID_BACKOFF.first_s + 0.1) == {"a"}
    assert avoid.names([A, B], AVOID_BACKOFF.first_s + TRY_S) == set()


def test_avoided_time_doubles_with_each_failure_until_a_success() -> None:
    avoid, now, avoided_s = AvoidList(), 0.0, []
    for _ in range(6):
        avoid.note(A, now)
        after_s = next(s for s in range(1000) if not avoid.names([A, B], now + s))
        avoided_s.append(after_s)
        now += after_s
    assert avoided_s == [5, 10, 20, 40, 60, 60] and AVOID_BACKOFF.max_s == 60
    avoid.note(A, now)
    avoid.clear(A)
    assert avoid.names([A, B], now) == set()


def test_avoid_list_excludes_new_incarnations_and_a_single_instance() -> None:
    avoid = AvoidList()
    avoid.note(A, 0.0)
    assert avoid.names([A], 0.0) == set()
    assert avoid.names([InstanceRun("a", 2), B], 0.0) == set()
