"""The phase record tells what kind of batches an instance runs, and since when."""

from macroserve.core.batch import BatchKind
from macroserve.core.status import Phase


class PhaseRecord:
    """A phase is a row of batches of the same kind (EcoServe, section 3.2).

    Attributes:
        since_s: start of the phase, seconds.
        prefill_s: predicted time of the prefills added since the last phase of decodes, or of all
            that wait where prefills and decodes are mixed, seconds.
    """

    def __init__(self) -> None:
        self.current = Phase.IDLE
        self.since_s = 0.0
        self.prefill_s = 0.0

    def enter(self, kind: BatchKind, waiting_prefill_s: float, now: float) -> None:
        """Note that a batch begins while prompts of ``waiting_prefill_s`` wait."""
        phase = Phase(kind.value)
        if phase is not self.current:
            self.current, self.since_s = phase, now
            if phase in (Phase.DECODE, Phase.IDLE):
                self.prefill_s = 0.0
        if phase is Phase.MIXED:  # no phases, so all waiting prefills are pending
            self.prefill_s = waiting_prefill_s
