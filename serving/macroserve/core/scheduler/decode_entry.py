"""An entry ties a decoding sequence to the steps that it shares with others."""

from macroserve.core.scheduler.sequence import Sequence


class DecodeEntry:
    """The entry holds what the collection notes of one sequence.

    Attributes:
        place: place in the order of entry.
        as_of_step: number of common steps that the sequence has been updated with.
        as_of_slow: number of slow ones among them, by the sequence's own target.
        due_step: step in which the sequence has to be looked at.
        pace_key: end of its TPOT budget less its target for each common step, seconds.
    """

    __slots__ = ("as_of_slow", "as_of_step", "due_step", "pace_key", "place", "seq")

    def __init__(self, seq: Sequence, place: int) -> None:
        self.seq = seq
        self.place = place
        self.as_of_step = 0
        self.as_of_slow = 0
        self.due_step = 0
        self.pace_key = 0.0
