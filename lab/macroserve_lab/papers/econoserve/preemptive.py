"""EconoServe's preemptive baselines: SRTF and FastServe (section 2.1).

Both reserve memory for the longest request (max-allocation), so that few run at once; who comes
first takes the place of who comes last. FastServe swaps the keys and values of a preempted job with
the host; here they are computed again, as under every other baseline.
"""

from bisect import bisect_left
from collections.abc import Callable
from heapq import nsmallest

from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.sequence import Sequence, State

NUM_LEVELS = 5
"""Queues of FastServe (section 2.1)."""

QUANTUM_RATIO = 2
"""Quantum of a queue over that of the one before, as in FastServe's paper (arXiv 2305.05920)."""


def srtf_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run the requests that are expected to have the fewest iterations left (shortest remaining
    time first, decided in each iteration)."""
    return _first_batch(inputs, admission, lambda seq: seq.num_remaining)


def fastserve_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run the requests of the highest queues, in order of arrival within a queue (FastServe's
    skip-join multi-level feedback queue). Its promotion of starved jobs is left out: it bounds the
    longest waits, which no figure of EconoServe's paper shows."""
    return _first_batch(inputs, admission, Queues(inputs.latency).level)


class Queues:
    """The queues of FastServe, whose quanta are multiples of the shortest iteration."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._token_s = latency.prefill_s(1)
        self._quanta_s = [self._token_s * QUANTUM_RATIO**i for i in range(NUM_LEVELS - 1)]

    def level(self, seq: Sequence) -> int:
        """Return the queue of a request; 0 is the highest.

        A request skips the queues whose quantum is shorter than its prefill. Once it has used up
        the quantum of its queue, it goes down by one; the last queue has no quantum.
        """
        prompt_s = self._latency.prefill_s(seq.request.num_prompt_tokens)
        found = bisect_left(self._quanta_s, prompt_s)
        used_s = prompt_s + self._token_s * (seq.num_emitted - 1) if seq.num_emitted else 0.0
        for quantum_s in self._quanta_s[found:]:
            if used_s < quantum_s:
                break
            used_s -= quantum_s
            found += 1
        return found


def _first_batch(
    inputs: IterationInputs, admission: Admission, rank: Callable[[Sequence], int]
) -> Plan:
    """Run the requests of the least rank, among equals the earliest, as many as there are seats;
    the others that run give up their caches for them."""
    decoding, running = inputs.decoding, inputs.running
    holders = [*running.prefilling.values(), *decoding.values()]
    seats = inputs.config.max_num_seqs
    first = nsmallest(
        seats, [*inputs.waiting, *holders], key=lambda seq: (rank(seq), seq.arrival_s, seq.ordinal)
    )
    kept = {seq.request_id for seq in first}
    preempted = [seq for seq in holders if seq.request_id not in kept]
    decodes = tuple([request_id for request_id in decoding if request_id in kept])
    freed = sum([running.blocks.held_by(seq.request_id) for seq in preempted])
    picks = admission.pick(
        inputs.config.max_batch_tokens - len(decodes),
        max_num_seqs=seats + len(preempted),
        held_back_blocks=-freed,
        chosen={seq: CacheKind.KV for seq in first if seq.state is State.WAITING},
    )
    return Plan(
        picks,
        decodes,
        "the first by rank, in place of the last",
        preempted=preempted,
        # One that waits may come before one that runs, whose rank falls with its tokens.
        repeatable=inputs.only_decodes and not inputs.waiting,
    )
