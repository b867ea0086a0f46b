"""Late requests have a share of the prefill, and the longest waits are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.linear_latency import NOW

from macroserve.core.batch import HandBackReason, HandedBack
from macroserve.core.request import Slo
from macroserve.core.scheduler.iteration import Pick
from macroserve.core.scheduler.late_requests import (
    LATE_SHARE,
    MAX_LATE_TTFTS,
    beyond_bound,
    credit_late_requests,
    late_s_per_token,
)


class LateCredit:
    """Credit of an iteration whose requests have one second to their first token."""

    def __init__(self, make_step, make_sequence) -> None:
        self._make_sequence = make_sequence
        self.inputs = make_step("unified").inputs

    def _sequence(self, waited_s: float):
        return self._make_sequence(f"r{waited_s}", arrival_s=NOW - waited_s)

    def wait(self, waited_s: float) -> None:
        self.inputs.waiting.add(self._sequence(waited_s))

    def begin(self, waited_s: float) -> None:
        self.inputs.running.admit(self._sequence(waited_s), 4)

    def credit(self, *picked: tuple[float, int]) -> float:
        """Credit for picks, by wait and number of tokens; return all that is promised."""
        picks = [
            Pick(self._sequence(waited_s), num_tokens, num_before=0)
            for waited_s, num_tokens in picked
        ]
        credit_late_requests(self.inputs, picks)
        return self.inputs.waiting.promised_tokens


@pytest.fixture
def late_credit(make_step, make_sequence) -> LateCredit:
    return LateCredit(make_step, make_sequence)


def test_late_requests_earn_a_share_of_other_prefills(late_credit):
    late_credit.wait(5.0)
    tokens = round(100 / LATE_SHARE)
    assert late_credit.credit((0.0, tokens)) == pytest.approx(100)
    assert late_credit.credit((0.0, tokens - 60), (5.0, 60)) == pytest.approx(140)
    assert late_credit.credit((5.0, 500)) == 0, "what they got beyond it is no debt"


@pytest.mark.parametrize(
    ("begun", "waiting", "share"),
    [
        ([], [5.0], LATE_SHARE),
        ([5.0], [], LATE_SHARE),
        ([0.5], [2.0], LATE_SHARE),
        # Not late yet: they have another half second.
        ([], [0.5], 0.0),
        ([0.5], [], 0.0),
        ([], [], 0.0),
    ],
)
def test_share_is_reserved_while_a_request_is_late(late_credit, begun, waiting, share):
    for waited_s in begun:
        late_credit.begin(waited_s)
    for waited_s in waiting:
        late_credit.wait(waited_s)
    assert late_credit.credit((0.0, 1000)) == pytest.approx(share * 1000)


def test_credit_is_gone_once_no_request_is_late(late_credit):
    late_credit.wait(5.0)
    assert late_credit.credit((0.0, 1000)) > 0
    late_credit.inputs.waiting.remove(late_credit.inputs.waiting.by_arrival.seqs[0])
    assert late_credit.credit((0.0, 1000)) == 0


@pytest.mark.parametrize(
    ("arriving_tokens_per_s", "share"),
    [(0.0, 1.0), (25.0, 0.75), (89.0, 0.11), (91.0, LATE_SHARE), (1e6, LATE_SHARE)],
)
def test_late_requests_get_what_arrivals_leave_and_at_least_their_share(
    arriving_tokens_per_s, share
):
    """An instance prefills 100 tokens a second."""
    assert late_s_per_token(0.01, arriving_tokens_per_s) == pytest.approx(0.01 / share)


@pytest.mark.parametrize(
    ("waited_s", "num_ahead", "bound_s", "is_refused"),
    [
        # Its 100 tokens take a second; the bound is eight targets of a second.
        (6.9, 0, None, False),
        (7.1, 0, None, True),
        (2.5, 400, None, False),
        (2.5, 500, None, True),
        # It may have a chance until it is overdue.
        (1.9, 500, None, False),
        (1.9, 5000, None, False),
        (7.1, 0, 9.0, False),
        (2.5, 0, 3.0, True),
    ],
)
def test_overdue_request_that_would_wait_too_long_is_refused(
    make_sequence, waited_s, num_ahead, bound_s, is_refused
):
    late = make_sequence("late", arrival_s=NOW - waited_s)
    leaving = beyond_bound([late], NOW, num_ahead, lambda _: 0.01, bound_s)
    assert leaving == [late] * is_refused


def test_request_that_came_from_another_instance_is_not_refused_for_its_wait_there(make_sequence):
    late = make_sequence("late", arrival_s=NOW - 60.0)
    late.queued_s = NOW - 1.0
    assert not beyond_bound([late], NOW, 0, lambda _: 0.01, None)


def test_refused_request_makes_room_for_the_next(make_sequence):
    long = make_sequence("long", 0, arrival_s=NOW - 3.0, prompt=600)
    short = make_sequence("short", 1, arrival_s=NOW - 2.9, prompt=100)
    assert beyond_bound([long, short], NOW, 0, lambda _: 0.01, None) == [long]


def test_request_with_a_longer_target_may_wait_longer(make_sequence):
    patient = make_sequence("patient", 0, arrival_s=NOW - 7.0, slo=Slo(3.0, 0.05))
    other = make_sequence("other", 1, arrival_s=NOW - 7.0)
    assert beyond_bound([patient, other], NOW, 0, lambda _: 0.01, None) == [other]


@given(
    st.lists(st.tuples(st.floats(2.0, 9.0), st.integers(1, 900)), max_size=12),
    st.floats(0.0005, 0.02),
)
def test_kept_requests_are_served_within_the_bound(make_sequence, requests, s_per_token):
    late = [
        make_sequence(f"r{index}", index, arrival_s=NOW - waited_s, prompt=num_tokens)
        for index, (waited_s, num_tokens) in enumerate(sorted(requests, reverse=True))
    ]
    leaving = beyond_bound(late, NOW, 0, lambda _: s_per_token, None)
    ends_s = NOW
    for seq in late:
        if seq not in leaving:
            ends_s += seq.num_to_prefill * s_per_token
            assert ends_s <= seq.arrival_s + MAX_LATE_TTFTS * seq.request.slo.ttft_s + 1e-9


def stuffed(make_scheduler, make_request, strategy="unified", **fields):
    """Return a scheduler whose one seat is taken, with prompts of 100 tokens that came at 0."""
    scheduler = make_scheduler(strategy, max_num_seqs=1, **fields)
    scheduler.add_request(make_request("first", 0.0), 0.0)
    scheduler.schedule(0.0)
    for index in range(5):
        scheduler.add_request(make_request(f"r{index}", 0.0), 0.0)
    scheduler.add_request(make_request("streaming", 0.0, streamed=2), 0.0)
    return scheduler


def test_late_requests_of_a_stuffed_instance_are_refused_at_their_bound(
    make_scheduler, make_request
):
    scheduler = stuffed(make_scheduler, make_request, max_late_wait_s=4.0)
    assert not scheduler.schedule(3.0).handed_back
    refused = scheduler.schedule(4.1).handed_back
    assert refused == tuple(HandedBack(f"r{i}", HandBackReason.DROP) for i in range(5))
    status = scheduler.status(4.1)
    assert (status.finished, status.attained) == (5, 0)
    assert "streaming" in scheduler.sequences


def test_without_triage_late_requests_are_served_in_their_order(make_scheduler, make_request):
    scheduler = stuffed(make_scheduler, make_request, "vllm")
    assert not scheduler.schedule(1000.0).handed_back


def test_late_request_from_another_instance_may_wait_as_long_again(make_scheduler, make_request):
    scheduler = stuffed(make_scheduler, make_request)
    scheduler.add_request(make_request("handed back", -60.0), 7.0)
    refused = [each.request_id for each in scheduler.schedule(8.1).handed_back]
    assert refused == [f"r{index}" for index in range(5)]


@pytest.mark.parametrize(("num_arriving", "num_refused"), [(0, 0), (40, 4)])
def test_arrivals_leave_late_requests_their_share_of_time(
    make_scheduler, make_request, num_arriving, num_refused
):
    """Prompts of 100 tokens take 0.022 s, or 0.22 s while new ones take nine tenths. Two of six,
    with the one in the seat, are in time within 0.45 s."""
    scheduler = stuffed(make_scheduler, make_request, max_late_wait_s=4.0)
    scheduler.latency.prefill_s = lambda num_tokens: 0.0002 * num_tokens
    for index in range(num_arriving):
        scheduler.add_request(make_request(f"new{index}", 3.5, prompt=400), 3.5)
    assert len(scheduler.schedule(3.55).handed_back) == num_refused
