"""Adaptive batches over a hybrid cache: Apt-Serve, sections 4.2 and 5.

A request is worth the time for which its reader has been waiting; one that has missed its targets
is worth next to nothing, so that it does not make others miss theirs.
"""

from collections.abc import Mapping

from macroserve.core.instance.cache import Cache
from macroserve.core.instance.knapsack import Candidate, choose
from macroserve.core.instance.sequence import Sequence
from macroserve.core.instance.step import Plan, Step

NEXT_TO_NOTHING = 1e-6
"""Value of a second of a late request's waiting: it still goes before an empty seat."""


def compose(step: Step) -> Plan:
    """Prefills or decodes, whichever have waited longer in sum; prefills by value for their memory.

    What decodes need is seen to before (``Running.make_room``), so all of them run.
    Bound: none for a request that gets late while memory is short; it is served when others end.
    """
    decodes = tuple(step.decoding)
    waiting = _worths(step)
    if decodes and sum(waiting.values()) <= sum(worth(seq, step) for seq in step.decoding.values()):
        return Plan((), decodes, "decodes have waited longer")
    if picks := step.pick(step.config.max_batch_tokens, whole=True, chosen=_chosen(step, waiting)):
        return Plan(picks, (), "prompts have waited longer")
    return Plan((), decodes, "no prompt to prefill")


def compose_chunked(step: Step) -> Plan:
    """All decodes, and as many of the chosen prompts' tokens as fill the chunk (section 6.7)."""
    budget = min(step.config.chunk_tokens, step.config.max_batch_tokens)
    chosen = _chosen(step, _worths(step))
    picks = step.pick(budget - len(step.decoding), chosen=chosen)
    return Plan(picks, tuple(step.decoding), "decodes and a chunk of the chosen prompts")


def _worths(step: Step) -> dict[Sequence, float]:
    return {seq: worth(seq, step) for seq in step.waiting}


def worth(seq: Sequence, step: Step) -> float:
    """What one iteration for it is worth, in seconds (the first term of equation 5, with the
    fallback)."""
    pending_s = step.now - seq.pending_since_s
    if not _is_late(seq, pending_s):
        return pending_s
    return pending_s * max(step.config.late_value, NEXT_TO_NOTHING)


def _is_late(seq: Sequence, pending_s: float) -> bool:
    if not seq.is_streaming:
        return pending_s > seq.deadline_s - seq.arrival_s
    return seq.first_token_s > seq.deadline_s or pending_s > seq.tpot_s


def _chosen(step: Step, worths: Mapping[Sequence, float]) -> dict[Sequence, Cache]:
    """The waiting requests to begin, the most valuable for their memory first.

    One that was just preempted waits for an iteration, although its hidden cache might fit.
    """
    waiting = [seq for seq in worths if seq not in step.preempted]
    blocks = step.running.blocks
    needs = [step.reservation(seq) for seq in waiting]
    candidates = [
        Candidate(worths[seq], needed, blocks.hidden_blocks(needed))
        for seq, needed in zip(waiting, needs, strict=True)
    ]
    num_requests = len(step.waiting) + len(step.running)
    penalty = num_requests * step.latency.rebuild_s(blocks.block_size)
    chosen = choose(candidates, blocks.free, penalty)
    return {waiting[index]: cache for index, cache in chosen.items()}
