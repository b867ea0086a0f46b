"""The cell ledger counts decisions in flight and loses none."""

from dataclasses import replace

import msgspec
import pytest
from support.in_flight import EMPTY, NOTHING, in_flight, request

from macroserve.core.routing.decision import RouteReason
from macroserve.core.routing.ledger import IN_FLIGHT_TIMEOUT_S, CellLedger
from macroserve.core.status import Ended, InstanceStatus, Phase, Pool
from macroserve.core.strategies import strategy


def ledger_of(*names: str, name: str = "ecoserve", status: InstanceStatus = EMPTY) -> CellLedger:
    ledger = CellLedger(strategy(name))
    for instance in names:
        ledger.add(instance, Pool.LP, max_num_seqs=64)
        assert ledger.observe(instance, status, now=0.0)
    return ledger


ONE = (1, 160, pytest.approx(0.1), 10)


def test_decision_in_flight_counts_until_a_status_admits_it() -> None:
    ledger = ledger_of("a")
    assert ledger.assign(request("r"), now=1.0).instance == "a"
    assert in_flight(ledger.views[0]) == ONE
    ledger.observe("a", msgspec.structs.replace(EMPTY, seq=2), now=1.1)
    assert in_flight(ledger.views[0]) == ONE
    ledger.observe(
        "a", msgspec.structs.replace(EMPTY, seq=3, num_waiting=1, admitted=("r", "other")), now=1.2
    )
    assert in_flight(ledger.views[0]) == NOTHING
    assert ledger.views[0].as_of_s == 1.2


def test_decision_after_others_in_flight_chooses_another_instance() -> None:
    ledger = ledger_of("a", "b")
    chosen = [ledger.assign(request(f"r{i}", 400), now=0.0).instance for i in range(5)]
    assert chosen == ["a", "a", "b", "b", "b"]  # 0.8 s of 1 s each, then the least wait


def test_decision_in_flight_after_the_timeout_no_longer_counts() -> None:
    ledger = ledger_of("a", "b", name="vllm")
    ledger.assign(request("old"), now=0.0)
    ledger.assign(request("young"), now=1.0)
    ledger.assign(request("new"), now=IN_FLIGHT_TIMEOUT_S)
    assert [view.in_flight_requests for view in ledger.views] == [1, 1]
    ledger.assign(request("newest"), now=IN_FLIGHT_TIMEOUT_S + 1.0)
    assert [view.in_flight_requests for view in ledger.views] == [1, 1]


@pytest.mark.parametrize("end", ["settle", "remove", "restart", "admitted by a late status"])
def test_decision_in_flight_ends_with_its_request_or_instance(end: str) -> None:
    ledger = ledger_of("a")
    ledger.observe("a", msgspec.structs.replace(EMPTY, seq=5), now=0.0)
    ledger.assign(request("r"), now=1.0)
    match end:
        case "settle":
            ledger.settle("r")
            ledger.settle("r")
        case "remove":
            assert ledger.remove("a") and not ledger.remove("a")
            ledger.add("a", Pool.LP, max_num_seqs=64)
        case "restart":
            assert ledger.observe("a", EMPTY, now=1.1, incarnation=1)
        case _:
            assert not ledger.observe(
                "a", msgspec.structs.replace(EMPTY, seq=4, admitted=("r",)), now=1.1
            )
            assert ledger.views[0].status.seq == 5
    assert in_flight(ledger.views[0]) == NOTHING


def test_request_routed_again_counts_once() -> None:
    ledger = ledger_of("a", "b")
    assert ledger.assign(request("r"), now=0.0).instance == "a"
    again = replace(request("r"), exclude=frozenset("a"))
    assert ledger.assign(again, now=0.1).instance == "b"
    assert [in_flight(view) for view in ledger.views] == [NOTHING, ONE]
    ledger.observe("a", msgspec.structs.replace(EMPTY, seq=2, admitted=("r",)), now=0.2)
    assert [in_flight(view) for view in ledger.views] == [NOTHING, ONE]


def test_instance_before_its_first_status_takes_no_requests() -> None:
    ledger = CellLedger(strategy("unified"))
    ledger.add("a", Pool.LP, max_num_seqs=64)
    assert ledger.assign(request("r"), now=0.0).reason is RouteReason.NO_INSTANCE
    assert ledger.cell_view("cell-0").num_ready == 0
    assert ledger.observe("a", msgspec.structs.replace(EMPTY, seq=0), now=0.0)
    assert ledger.assign(request("r"), now=0.0).instance == "a"
    assert ledger.cell_view("cell-0").num_ready == 1


@pytest.mark.parametrize(
    ("seq", "incarnation", "is_news"),
    [(6, 2, True), (5, 2, False), (4, 2, False), (99, 1, False), (0, 3, True)],
)
def test_status_older_than_the_last_is_ignored(seq: int, incarnation: int, is_news: bool) -> None:
    ledger = CellLedger(strategy("unified"))
    ledger.add("a", Pool.LP, max_num_seqs=64, incarnation=2)
    ledger.observe("a", msgspec.structs.replace(EMPTY, seq=5), now=0.0, incarnation=2)
    late = msgspec.structs.replace(EMPTY, seq=seq, num_running=9)
    assert ledger.observe("a", late, now=1.0, incarnation=incarnation) is is_news
    assert (ledger.views[0].status == late) is is_news
    assert ledger.views[0].as_of_s == (1.0 if is_news else 0.0)


def test_ledger_for_an_unknown_instance_returns_false() -> None:
    ledger = ledger_of("a")
    assert not ledger.observe("b", EMPTY, now=0.0)
    assert not ledger.set_pool("b", Pool.HP)
    assert not ledger.remove("b")
    assert [view.name for view in ledger.views] == ["a"]


def test_instance_added_again_is_replaced_by_a_newer_incarnation() -> None:
    ledger = CellLedger(strategy("unified"))
    ledger.add("a", Pool.LP, max_num_seqs=64, incarnation=2)
    ledger.observe("a", EMPTY, now=0.0, incarnation=2)
    ledger.add("a", Pool.HP, max_num_seqs=64, incarnation=2)
    assert (ledger.views[0].pool, ledger.views[0].status) == (Pool.HP, EMPTY)
    ledger.add("a", Pool.LP, max_num_seqs=64, incarnation=1)
    assert ledger.views[0].pool is Pool.HP
    ledger.add("a", Pool.LP, max_num_seqs=64, incarnation=3)
    assert ledger.views[0].status.draining


def test_cyclic_order_after_tickets_and_urgent_requests_is_unchanged() -> None:
    ledger = ledger_of("a", "h", "b", name="ascendra")
    assert ledger.set_pool("h", Pool.HP)

    def chosen(request_id: str, offloaded: bool = False) -> str | None:
        asked = replace(request(request_id), offloaded=offloaded)
        return ledger.assign(asked, now=0.0).instance

    assert [chosen(f"r{i}") for i in range(4)] == ["h", "a", "b", "a"]
    assert chosen("urgent", offloaded=True) == "h"
    assert chosen("r4") == "b"
    ledger.settle("r0")
    ledger.settle("urgent")
    assert [chosen("ticket"), chosen("r5")] == ["h", "a"]


def test_cell_view_sums_statuses_and_decisions_in_flight() -> None:
    status = msgspec.structs.replace(
        EMPTY,
        phase=Phase.DECODE,
        num_waiting=1,
        num_running=5,
        num_decoding=3,
        waiting_prefill_s=0.5,
        decode_step_s=0.03,
    )
    ledger = ledger_of("a", "b", status=status)
    ledger.set_pool("b", Pool.HP)
    ledger.observe(
        "b",
        msgspec.structs.replace(
            status, seq=2, draining=True, finished=7, attained=6, decode_step_s=0.09
        ),
        now=0.0,
    )
    ledger.assign(request("r"), now=0.0)
    cell = ledger.cell_view("cell-0")
    assert cell.waiting_prefill_s == pytest.approx(1.1)
    assert msgspec.structs.asdict(cell) == {
        "name": "cell-0",
        "instances": ("a", "b"),
        "high_priority": ("b",),
        "num_ready": 1,
        "num_prefilling": 4,
        "num_decoding": 6,
        "num_waiting": 3,
        "num_running": 10,
        "waiting_prefill_s": cell.waiting_prefill_s,
        "prefill_s_per_token": 0.001,
        "free_blocks": 190,
        "num_blocks": 200,
        "finished": 7,
        "attained": 6,
        "ended_by_class": {},
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "decodes": 0,
        "decoded_tokens": 0,
        "pool_tokens": 200 * 16,
        "decode_step_s": 0.03,
        "lost_tokens": 0,
        "moved_tokens": 0,
    }


@pytest.mark.parametrize(
    ("all_of_them", "some"), [("prompt_tokens", "cached_tokens"), ("decoded_tokens", "decodes")]
)
def test_cell_view_counts_since_an_instance_joined(all_of_them: str, some: str) -> None:
    def status(seq: int, num_all: int, num_some: int) -> InstanceStatus:
        counts = {all_of_them: num_all, some: num_some}
        return msgspec.structs.replace(EMPTY, seq=seq, **counts)

    ledger = ledger_of("a", "b", status=status(1, 1000, 900))
    ledger.observe("a", status(2, 1100, 960), now=1.0)
    ledger.observe("b", status(2, 1050, 910), now=1.0)
    ledger.remove("a")
    cell = ledger.cell_view("cell-0")
    assert (getattr(cell, all_of_them), getattr(cell, some)) == (150, 70)


def test_cell_view_after_an_instance_leaves_keeps_ended_requests() -> None:
    def counts() -> tuple[int, int]:
        cell = ledger.cell_view("cell-0")
        return cell.finished, cell.attained

    def status(seq: int, finished: int, attained: int) -> InstanceStatus:
        return msgspec.structs.replace(EMPTY, seq=seq, finished=finished, attained=attained)

    # Requests that ended before the adoption count for the other cell.
    ledger = ledger_of("a", "b", status=status(1, 100, 90))
    assert counts() == (0, 0)
    ledger.observe("a", status(3, 103, 92), now=1.0)
    ledger.observe("b", status(2, 101, 91), now=1.0)
    assert counts() == (4, 3)
    ledger.observe("a", status(2, 102, 91), now=1.1)  # late
    assert counts() == (4, 3)
    ledger.remove("a")
    assert counts() == (4, 3)
    # After a lost connection, a move and back, or a restart, counts continue from the new status.
    ledger.add("a", Pool.LP, max_num_seqs=64)
    ledger.observe("a", status(9, 120, 95), now=2.0)
    ledger.observe("a", status(10, 121, 95), now=2.0)
    assert counts() == (5, 3)
    ledger.observe("a", status(1, 0, 0), now=3.0, incarnation=1)
    ledger.observe("a", status(2, 1, 1), now=3.0, incarnation=1)
    assert counts() == (6, 4)


def test_cell_view_counts_what_ended_in_each_class_since_an_instance_joined() -> None:
    def status(seq: int, **ended: tuple[int, int]) -> InstanceStatus:
        by_class = {name: Ended(*counts) for name, counts in ended.items()}
        return msgspec.structs.replace(EMPTY, seq=seq, ended_by_class=by_class)

    ledger = ledger_of("a", "b", status=status(1, batch=(100, 90)))
    ledger.observe("a", status(2, batch=(103, 92)), now=1.0)
    ledger.observe("b", status(2, batch=(100, 90), chat=(2, 1)), now=1.0)
    ledger.remove("a")
    found = ledger.cell_view("cell-0").ended_by_class
    assert found == {"batch": Ended(3, 2), "chat": Ended(2, 1)}
    ledger.observe("b", status(3, batch=(101, 90), chat=(2, 1)), now=2.0)
    assert found == {"batch": Ended(3, 2), "chat": Ended(2, 1)}, "a view does not change"
    assert ledger.cell_view("cell-0").ended_by_class["batch"] == Ended(4, 2)


def test_ledger_counts_what_it_refused_by_reason() -> None:
    ledger = ledger_of("a")
    assert ledger.assign(request("taken"), now=0.0, ignore_constraints=False).instance == "a"
    assert ledger.refused == {}
    late = request("late", num_tokens=1200)
    refused = ledger.assign(late, now=0.0, ignore_constraints=False)
    assert (refused.instance, refused.satisfied, refused.refusal) == (None, False, "ttft")
    assert ledger.assign(late, now=0.0).instance == "a", "the best instance takes it all the same"
    long = request("long", num_tokens=900)
    short_of_memory = ledger_of("a", status=msgspec.structs.replace(EMPTY, free_blocks=50))
    short_of_memory.assign(long, now=0.0, ignore_constraints=False)
    assert short_of_memory.refused == {"memory": 1}
    nowhere = replace(request("nowhere"), exclude=frozenset({"a"}))
    for _ in range(2):
        ledger.assign(nowhere, now=0.0)
    trial = replace(request("trial"), trial=True)
    ledger.assign(trial, now=0.0)
    ledger.assign(replace(request("another"), trial=True), now=0.0)
    assert ledger.refused == {"ttft": 1, "no_instance": 2, "trials_busy": 1}


def test_ledger_counts_no_refusal_of_a_probe() -> None:
    ledger = ledger_of("a")
    late = request("late", num_tokens=1200)
    probe = replace(late, request=replace(late.request, probe=True))
    assert ledger.assign(probe, now=0.0, ignore_constraints=False).instance is None
    assert ledger.assign(replace(probe, exclude=frozenset({"a"})), now=0.0).instance is None
    assert ledger.refused == {}
