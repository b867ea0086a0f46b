"""Result of a session of runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from macroserve.bench.serve.goodput import Goodput
from macroserve.bench.serve.metrics import Summary
from macroserve.bench.serve.record import Failure, RequestRecord


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its result."""

    intensity: float
    """Intensity of the load, see ``workload.load.Load``."""
    num_planned: int
    records: Sequence[RequestRecord]
    summary: Summary
    client_cpu: float
    """Share of one core that the client used."""

    @property
    def is_unreachable(self) -> bool:
        """Return whether no connection could be made."""
        kinds = {failed.failure for failed in self.summary.failures}
        return self.summary.num_succeeded == 0 and kinds == {Failure.CONNECT}


@dataclass(frozen=True, slots=True)
class Result:
    model: str
    runs: tuple[Run, ...]
    """The single run, or one per probe of a search."""
    goodput: Goodput | None = None
    """Result of a search; None if there was none or it did not end."""
