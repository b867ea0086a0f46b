"""The result of a session of runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from macroserve.bench.serve.goodput import Goodput
from macroserve.bench.serve.metrics import Summary
from macroserve.bench.serve.record import Failure, RequestRecord


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its result.

    intensity: intensity of the load, see ``workload.load.Load``.
    client_cpu: share of one core that the client used.
    """

    intensity: float
    num_planned: int
    records: Sequence[RequestRecord]
    summary: Summary
    client_cpu: float

    @property
    def is_unreachable(self) -> bool:
        """Return whether no connection could be made."""
        kinds = {failed.failure for failed in self.summary.failures}
        return self.summary.num_succeeded == 0 and kinds == {Failure.CONNECT}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a session.

    runs: the single run, or one for each probe of a search.
    goodput: the goodput that a search found, None where the search did not end.
    """

    model: str
    runs: tuple[Run, ...]
    goodput: Goodput | None = None
