"""A speculating engine drafts tokens, verifies them beside each decode's last one, and emits those
that it accepts."""

from collections.abc import Container, Mapping

from macroserve.core.scheduler.in_flight import Flight

WINDOW_DECODES = 1000
"""Number of decodes, each in one step, over which the means are taken."""


class Speculation:
    """The means are weighted by decodes, exponentially; a decode counts once in each step.

    num_drafts: drafted tokens that a decode verifies, as the engine is configured; 0 if it drafts
        none.

    Attributes:
        drafted: mean drafted tokens that a decode verifies in a step.
        emitted: mean tokens that come out of it: the accepted ones and one more.
        num_decodes: decodes observed so far.
        num_emitted: tokens that came out of them.
    """

    def __init__(self, num_drafts: int = 0) -> None:
        self.drafted = float(num_drafts)
        self.emitted = 1.0
        self.num_decodes = 0
        self.num_emitted = 0

    def observe(self, flight: Flight, more: Mapping[str, int], known: Container[str]) -> None:
        """Add the decodes of a batch that has ended, except those whose request is not ``known``
        any more.

        more: tokens beyond the one that was promised of each, by request id.
        """
        promised = flight.taken.emitted
        decodes = [i for i in flight.batch.decodes if promised.get(i, 1) and i in known]
        num_decodes = len(decodes)
        if not num_decodes:
            return
        num_emitted = num_decodes + sum([more.get(request_id, 0) for request_id in decodes])
        self.num_decodes += num_decodes
        self.num_emitted += num_emitted
        weight = num_decodes / (num_decodes + WINDOW_DECODES)
        if self.num_decodes < WINDOW_DECODES:
            weight = num_decodes / self.num_decodes
        self.drafted += weight * (flight.taken.drafted / num_decodes - self.drafted)
        self.emitted += weight * (num_emitted / num_decodes - self.emitted)
