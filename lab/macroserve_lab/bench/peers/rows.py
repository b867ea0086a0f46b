"""A load with the lengths and shared blocks of a data set's rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from random import Random

from macroserve.workload.arrivals import Arrival, gamma_gaps
from macroserve.workload.load import EndlessLoad


@dataclass(frozen=True, slots=True)
class RowLoad(EndlessLoad):
    """Requests from consecutive rows, cyclically from a random one."""

    rows: Sequence[Arrival]

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        random = Random(seed)
        first = random.randrange(len(self.rows))
        gap_s = gamma_gaps(self.rate, self.cv, random.gammavariate)
        at_s = 0.0
        for row in cycle(chain(self.rows[first:], self.rows[:first])):
            at_s += gap_s()
            yield row._replace(at_s=at_s)
