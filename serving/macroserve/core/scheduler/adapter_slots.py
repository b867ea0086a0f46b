"""An engine computes few adapters at a time: requests of one more wait for a slot."""

from macroserve.core.scheduler.iteration import IterationInputs
from macroserve.core.scheduler.sequence import Sequence


class AdapterSlots:
    """The slots hold the adapters of the running requests and of the prompts that begin beside
    them.

    The request that has waited longest, once it has waited too long, has a slot kept for its
    adapter: while the slots are full no request of another adapter begins, so that one is left.
    """

    def __init__(self, inputs: IterationInputs) -> None:
        self._num_slots = inputs.config.max_adapters
        self._held: set[str] = set()
        if self._num_slots is None:
            return
        adapters = [name for name, num_users in inputs.running.adapters.items() if num_users]
        oldest = inputs.waiting.oldest()
        if oldest and oldest.overdue_from_s < inputs.now:
            adapters.append(oldest.request.adapter)
        self._held.update(filter(None, adapters))

    def fit(self, seq: Sequence) -> bool:
        """Return whether a waiting request may begin."""
        adapter = seq.request.adapter
        if self._num_slots is None or adapter is None:
            return True
        return len(self._held | {adapter}) <= self._num_slots

    def take(self, seq: Sequence) -> None:
        """Note that a request begins."""
        if seq.request.adapter is not None:
            self._held.add(seq.request.adapter)
