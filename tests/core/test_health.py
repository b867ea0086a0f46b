"""Instances are restarted after faults, by a clock that the test moves."""

import pytest

from macroserve.core.health import (
    FIRST_STEP_S,
    MIN_BOUND_S,
    SERVER_BOUND_S,
    STEP_FACTOR,
    EngineBeat,
    HealthJudge,
    step_bound_s,
)


class Instance:
    """A second passes at a time; a hung part sends no heartbeat or makes no progress."""

    def __init__(self) -> None:
        self.now = 0.0
        self.judge = HealthJudge(self.now)
        self.progress = 0

    def pass_s(
        self,
        seconds: float,
        *,
        beats: bool = True,
        server: bool = True,
        progresses: bool = True,
        work: int = 1,
        passed: int | None = None,
        step_s: float = 0.05,
        first: bool = False,
    ) -> str | None:
        """Return the first fault within a time.

        work: requests in the engine.
        passed: the same as counted by the server.
        """
        for _ in range(round(seconds)):
            self.now += 1
            self.progress += progresses
            if beats:
                beat = EngineBeat(self.progress, work, step_s if work else 0.0, first)
                self.judge.observe_engine(beat, self.now)
            if server:
                self.judge.observe_server(work if passed is None else passed, self.now)
            if fault := self.judge.fault(self.now):
                return fault
        return None


@pytest.mark.parametrize(
    ("case", "seconds", "fault"),
    [
        ({}, 3600, None),
        ({"work": 0, "progresses": False}, 3600, None),
        ({"progresses": False}, MIN_BOUND_S - 1, None),
        ({"progresses": False}, MIN_BOUND_S + 3, "no progress for 11 s"),
        ({"progresses": False, "server": False}, MIN_BOUND_S + 3, "no progress"),
        ({"beats": False}, MIN_BOUND_S - 1, None),
        ({"beats": False}, MIN_BOUND_S + 3, "engine has sent nothing for 11 s"),
        ({"beats": False, "work": 0}, MIN_BOUND_S + 3, "engine has sent nothing"),
        ({"beats": False, "server": False}, MIN_BOUND_S + 3, "engine has sent nothing"),
        ({"server": False}, SERVER_BOUND_S - 1, None),
        ({"server": False}, SERVER_BOUND_S + 3, "HTTP server has not answered for 31 s"),
        ({"server": False, "work": 0}, SERVER_BOUND_S + 3, "HTTP server has not answered"),
        # Passed to the engine, but never taken in.
        ({"work": 0, "passed": 1, "progresses": False}, MIN_BOUND_S - 1, None),
        ({"work": 0, "passed": 1, "progresses": False}, MIN_BOUND_S + 3, "did not take in"),
        ({"work": 0, "passed": 1}, 3600, None),
    ],
)
def test_health_judge_of_a_hung_part_tells_the_fault(
    case: dict[str, bool], seconds: float, fault: str | None
) -> None:
    instance = Instance()
    assert instance.pass_s(5) is None
    found = instance.pass_s(seconds, **case)
    assert found is None if fault is None else fault in (found or "")


@pytest.mark.parametrize("step_s", [0.6, 5.0, 60.0])
def test_health_bound_follows_the_predicted_step(step_s: float) -> None:
    """The prompt has 100,000 tokens on a CPU."""
    instance = Instance()
    bound_s = STEP_FACTOR * step_s
    assert instance.pass_s(bound_s - 1, progresses=False, step_s=step_s) is None
    assert "no progress" in (instance.pass_s(5, progresses=False, step_s=step_s) or "")


def test_health_bound_of_a_first_step_allows_compilation() -> None:
    instance = Instance()
    hung = {"progresses": False, "first": True}
    assert instance.pass_s(FIRST_STEP_S - 1, **hung) is None
    assert "no progress" in (instance.pass_s(5, **hung) or "")
    assert step_bound_s(EngineBeat(0, 1, 60.0, True)) == STEP_FACTOR * 60.0


def test_health_of_a_blocked_server_with_an_idle_engine_is_no_fault() -> None:
    """The server's count from before it was blocked tells nothing afterwards."""
    instance = Instance()
    assert instance.pass_s(5, work=3) is None
    assert instance.pass_s(20, work=0, server=False, progresses=False) is None
    assert instance.pass_s(2, work=0, passed=3, progresses=False) is None
    assert instance.pass_s(30, work=0, progresses=False) is None


def test_health_judge_after_its_own_pause_starts_anew() -> None:
    instance = Instance()
    assert instance.pass_s(5) is None
    instance.now += 600
    assert instance.judge.fault(instance.now) is None
    assert instance.pass_s(MIN_BOUND_S - 1, beats=False, server=False) is None
    assert instance.pass_s(3, beats=False, server=False) is not None
