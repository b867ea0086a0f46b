"""Whether an instance still works: judged from the beats of its engine and of its server.

A busy HTTP loop is not a dead instance; an engine that makes no progress is. The judge sits in a
process that no request can block, and sees three things: whether the engine's process beats,
whether the engine makes progress while it has work, and whether the server's loop turns.
"""

import msgspec

BEAT_S = 1.0
"""The engine's process and the server's loop each beat this often."""
MIN_BOUND_S = 10.0
"""No silence and no iteration is held against an engine before. A busy machine delays a beat by a
second or two, so a lower bound ends engines that work."""
STEP_FACTOR = 20.0
"""An iteration may take this many times its predicted duration. Predictions are off by a factor of
two to five on a machine that is shared; between 10 and 50 only the delay of a restart differs."""
FIRST_STEP_S = 300.0
"""An iteration of a kind that the engine has not run yet may compile kernels."""
SERVER_BOUND_S = 30.0
"""One request may hold the server's loop for many seconds (a grammar, a regular expression); what
holds it for longer does not end by itself. Streams are moved elsewhere long before."""
PAUSE_S = 5.0
"""A judge that was not asked for this long was itself stopped: what it missed proves nothing."""


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """Sent by the engine's process every BEAT_S, from a thread of its own.

    pid: of that process. progress: grows when an iteration begins and when one ends.
    num_unfinished: requests that the engine has taken in and not ended. step_s: predicted duration
    of the iteration that runs, 0 between iterations. first: no iteration of its kind has ended yet.
    """

    pid: int
    progress: int
    num_unfinished: int
    step_s: float = 0.0
    first: bool = False


def step_bound_s(beat: Beat) -> float:
    """How long the engine may go without progress, seconds."""
    bound_s = max(MIN_BOUND_S, STEP_FACTOR * beat.step_s)
    return max(bound_s, FIRST_STEP_S) if beat.first else bound_s


class HealthJudge:
    """Collects beats from the moment when the instance serves; loading and warm-up are not judged.

    server_pid: of the server's process. An engine inside of it (the emulated one) is silent
    whenever the server is, and is judged as the server.
    """

    def __init__(self, server_pid: int, now: float) -> None:
        self._server_pid = server_pid
        self._beat: Beat | None = None
        self._asked_s = now
        self._forgive(now)

    def _forgive(self, now: float) -> None:
        """Begin anew: every clock starts at ``now``."""
        self._engine_s = self._server_s = self._progress_s = self._waiting_s = now

    def observe_engine(self, beat: Beat, now: float) -> None:
        last, self._beat, self._engine_s = self._beat, beat, now
        if last is None or beat.progress != last.progress:
            self._progress_s = self._waiting_s = now
        elif not beat.num_unfinished:
            self._progress_s = now

    def observe_server(self, num_unfinished: int, now: float) -> None:
        """The server's loop turns. num_unfinished: requests that it has passed to the engine and
        that have not ended. A number from before a pause of the loop is not relied on."""
        if not num_unfinished or now - self._server_s > PAUSE_S:
            self._waiting_s = now
        self._server_s = now

    def fault(self, now: float) -> str | None:
        """Why the instance has to be restarted, as the end of a sentence; None while it works."""
        asked_s, self._asked_s = self._asked_s, now
        if now - asked_s > PAUSE_S:
            self._forgive(now)
            return None
        if now - self._server_s > SERVER_BOUND_S:
            return f"its HTTP server has not answered for {now - self._server_s:.0f} s"
        beat = self._beat
        inside = beat is not None and beat.pid == self._server_pid
        if now - self._engine_s > MIN_BOUND_S and not inside:
            return f"its engine has sent nothing for {now - self._engine_s:.0f} s"
        if beat is None:
            return None
        bound_s = step_bound_s(beat)
        # Only what beats tell counts: while none come, the engine is silent, not stuck.
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
