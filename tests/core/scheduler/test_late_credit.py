"""Late requests earn a share of what others prefill, and a larger one while one is overdue."""

import pytest

from macroserve.core.scheduler.iteration import Pick
from macroserve.core.scheduler.late_credit import LATE_SHARE, OVERDUE_SHARE, credit_late_requests
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import State
from macroserve.core.scheduler.waiting import WaitingQueue
from macroserve.core.strategy import Ordering

NOW = 10.0


class World:
    """A queue whose requests have one second to their first token."""

    def __init__(self, make_config, make_sequence) -> None:
        self._make_sequence = make_sequence
        self.running = Running.of(make_config(), None)
        self.waiting = WaitingQueue(Ordering.EDF)

    def wait(self, arrival_s: float) -> None:
        self.waiting.add(self._make_sequence(f"w{arrival_s}", arrival_s=arrival_s))

    def begin(self, arrival_s: float) -> None:
        seq = self._make_sequence(f"b{arrival_s}", arrival_s=arrival_s)
        self.running.admit(seq, 4)
        assert seq.state is State.PREFILLING

    def credit(self, *picked: tuple[float, int], overdue_after_s: float | None = None) -> float:
        """Credit for picks, by arrival and number of tokens; return all that is promised."""
        picks = [
            Pick(self._make_sequence(f"p{arrival_s}", arrival_s=arrival_s), num_tokens, 0)
            for arrival_s, num_tokens in picked
        ]
        credit_late_requests(self.waiting, self.running, picks, NOW, overdue_after_s)
        return self.waiting.promised_tokens


@pytest.fixture
def world(make_config, make_sequence) -> World:
    return World(make_config, make_sequence)


def test_late_requests_earn_a_share_of_other_prefills(world):
    world.wait(5.0)
    tokens = round(100 / LATE_SHARE)
    assert world.credit((NOW, tokens)) == pytest.approx(100)
    assert world.credit((NOW, tokens - 60), (5.0, 60)) == pytest.approx(140)
    assert world.credit((5.0, 500)) == 0, "what they got beyond it is no debt"


@pytest.mark.parametrize(
    ("begun", "waiting", "overdue_after_s", "share"),
    [
        ([], [5.0], None, LATE_SHARE),
        ([], [5.0], 5.1, LATE_SHARE),
        ([], [5.0], 5.0, OVERDUE_SHARE),
        ([], [8.0, 5.0], 5.0, OVERDUE_SHARE),
        ([5.0], [], 5.0, OVERDUE_SHARE),
        ([5.0], [8.0], 5.0, OVERDUE_SHARE),
        ([8.0], [5.0], 5.0, OVERDUE_SHARE),
        ([8.0], [8.0], 5.0, LATE_SHARE),
        # Not late, or late no more: it has until 10.5.
        ([], [9.5], 0.1, 0.0),
        ([9.5], [], 0.1, 0.0),
        ([], [], 0.1, 0.0),
    ],
)
def test_share_is_larger_while_a_late_request_is_overdue(
    world, begun, waiting, overdue_after_s, share
):
    for arrival_s in begun:
        world.begin(arrival_s)
    for arrival_s in waiting:
        world.wait(arrival_s)
    assert world.credit((NOW, 1000), overdue_after_s=overdue_after_s) == pytest.approx(share * 1000)


def test_credit_is_gone_once_no_request_is_late(world):
    world.wait(5.0)
    assert world.credit((NOW, 1000)) > 0
    world.waiting.remove(world.waiting.by_arrival.seqs[0])
    assert world.credit((NOW, 1000)) == 0
