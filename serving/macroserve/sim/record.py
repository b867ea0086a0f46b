"""A simulated request, as its client sees it."""

from array import array
from collections.abc import Sequence
from itertools import chain, islice
from operator import sub

from macroserve.core.request import Request


class Record:
    """One request as its client sees it, and as the device holds it.

    decoding_s: when its first decode began. gaps_s: between its tokens, until it is judged.
    as_of_step, last_step: ``Streams``', while it decodes.
    """

    __slots__ = (
        "as_of_step",
        "decoding_s",
        "first_s",
        "gaps_s",
        "is_hidden",
        "last_s",
        "last_step",
        "num_computed",
        "num_emitted",
        "num_output",
        "request",
    )

    def __init__(self, request: Request, num_output: int) -> None:
        self.request = request
        self.num_output = num_output
        self.num_computed = 0
        self.num_emitted = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.is_hidden = False
        self.decoding_s = 0.0
        self.gaps_s = array("f")
        self.as_of_step = 0
        self.last_step = -1

    @property
    def num_tokens(self) -> int:
        return self.request.num_prompt_tokens + self.num_emitted

    @property
    def ended(self) -> bool:
        return self.num_emitted >= self.num_output

    def emit(self, at_s: Sequence[float]) -> None:
        """A token comes out at each of these times."""
        if not at_s:
            return
        if self.num_emitted:
            self.gaps_s.extend(map(sub, at_s, chain((self.last_s,), at_s)))
        else:
            self.first_s = at_s[0]
            self.gaps_s.extend(map(sub, islice(at_s, 1, None), at_s))
        self.num_emitted += len(at_s)
        self.last_s = at_s[-1]
