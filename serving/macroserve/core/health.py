"""Health of an instance, judged by the heartbeats of its engine and its server.

A busy HTTP loop does not mean a dead instance; an engine without progress does. The judge runs in a
process that no request can block.
"""

import msgspec

BEAT_S = 1.0
"""Interval between heartbeats of the engine and of the server's loop, seconds."""
MIN_BOUND_S = 10.0
"""Shortest silence or iteration that counts as a fault, seconds. A busy machine delays heartbeats
by a second or two, so a lower bound would restart working engines."""
STEP_FACTOR = 20.0
"""Bound of an iteration as a multiple of its predicted duration. Predictions are off by a factor of
two to five on a shared machine; between 10 and 50 only the delay of a restart differs."""
FIRST_STEP_S = 300.0
"""Bound of the first iteration of its kind, seconds: the engine may compile kernels."""
SERVER_BOUND_S = 30.0
"""Longest stall of the server's loop, seconds, while the engine's heart beats."""
PAUSE_S = 5.0
"""A judge not asked for this many seconds was itself paused: missing heartbeats prove nothing."""


class EngineBeat(msgspec.Struct, frozen=True, array_like=True):
    """Heartbeat of the engine, sent every BEAT_S from a separate thread."""

    progress: int
    """Counter that grows at the begin and at the end of every iteration."""
    num_unfinished: int
    """Requests that the engine has accepted and not finished."""
    step_s: float = 0.0
    """Predicted duration of the running iteration, seconds; 0 between iterations."""
    first: bool = False
    """Whether no iteration of its kind has ended yet."""


def step_bound_s(beat: EngineBeat) -> float:
    """Return how long the engine may go without progress, seconds."""
    bound_s = max(MIN_BOUND_S, STEP_FACTOR * beat.step_s)
    return max(bound_s, FIRST_STEP_S) if beat.first else bound_s


class HealthJudge:
    """Failure detector for an instance that serves; loading and warm-up are not judged."""

    def __init__(self, now: float) -> None:
        self._beat: EngineBeat | None = None
        self._asked_s = now
        self._forgive(now)

    def _forgive(self, now: float) -> None:
        """Restart every clock at ``now``."""
        self._engine_s = self._server_s = self._progress_s = self._waiting_s = now

    def observe_engine(self, beat: EngineBeat, now: float) -> None:
        last, self._beat, self._engine_s = self._beat, beat, now
        if last is None or beat.progress != last.progress:
            self._progress_s = self._waiting_s = now
        elif not beat.num_unfinished:
            self._progress_s = now

    def observe_server(self, num_unfinished: int, now: float) -> None:
        """Record a turn of the server's loop.

        num_unfinished: unfinished requests that the server has passed to the engine. After a pause
            of the loop it may be out of date and is ignored.
        """
        if not num_unfinished or now - self._server_s > PAUSE_S:
            self._waiting_s = now
        self._server_s = now

    def fault(self, now: float) -> str | None:
        """Return why the instance must be restarted, as the end of a sentence; None if healthy."""
        asked_s, self._asked_s = self._asked_s, now
        if now - asked_s > PAUSE_S:
            self._forgive(now)
            return None
        if now - self._server_s > SERVER_BOUND_S:
            return f"its HTTP server has not answered for {now - self._server_s:.0f} s"
        if now - self._engine_s > MIN_BOUND_S:
            return f"its engine has sent nothing for {now - self._engine_s:.0f} s"
        if (beat := self._beat) is None:
            return None
        bound_s = step_bound_s(beat)
        # Measured up to the last heartbeat: without heartbeats the engine is silent, not stuck.
        if self._engine_s - self._progress_s > bound_s:
            stuck_s = self._engine_s - self._progress_s
            return (
                f"its engine made no progress for {stuck_s:.0f} s with {beat.num_unfinished} "
                f"requests (predicted for this iteration: {beat.step_s:.2g} s)"
            )
        if self._server_s - self._waiting_s > bound_s and not beat.num_unfinished:
            return (
                f"its engine did not take in a request for {self._server_s - self._waiting_s:.0f} s"
            )
        return None
