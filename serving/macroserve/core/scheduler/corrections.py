"""Times and tokens that were counted before they came are corrected once they have come."""

from collections.abc import Iterator, Mapping

from macroserve.core.scheduler.in_flight import Flight
from macroserve.core.scheduler.prompt_costs import PromptCosts
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import Sequence, State
from macroserve.core.scheduler.waiting import WaitingQueue


def correct_times(flight: Flight, running: Running, decoded_s: float, now: float) -> None:
    """Correct the times of the tokens of a batch that ended ``now``.

    decoded_s: when the last decodes ended, or are expected to end, seconds.
    """
    decoding = running.decoding
    if flight.taken.decoded:
        decoding.correct_step(flight.expected_gap_s, flight.gap_s, flight.num_added)
        decoding.last_step_s = decoded_s
    for begun in flight.first:
        if begun.request_id in decoding:
            decoding.change(begun, begun.correct_first_token, now)
        else:
            begun.correct_first_token(now)


def correct_tokens(
    more: Mapping[str, int],
    sequences: Mapping[str, Sequence],
    running: Running,
    waiting: WaitingQueue,
    costs: PromptCosts,
) -> Iterator[Sequence]:
    """Count the tokens that came beyond the promised ones; yield the decoding sequences that
    reached their expected length.

    more: tokens by request id; negative where fewer came.
    """
    for request_id, num_tokens in more.items():
        seq = sequences.get(request_id)
        if seq is None:
            continue
        if seq.state is State.DECODING:
            if running.decoding.change(seq, seq.correct_tokens, num_tokens):
                yield seq
        elif seq.state is State.WAITING:
            # It lost its cache while the tokens were in flight, and has to compute them as well.
            waiting.remove(seq)
            seq.correct_tokens(num_tokens)
            seq.forget_cache()
            costs.come_back(seq)
            waiting.add(seq)
        else:
            seq.correct_tokens(num_tokens)
            if seq.state is State.PAUSED and seq.num_tokens >= seq.most_tokens:
                running.complete(seq)
