"""Adaptive batches over a hybrid cache: Apt-Serve, sections 4.2 and 5.

A request is worth the time for which its reader has been waiting; one that has missed its targets
is worth next to nothing, so that it does not make others miss theirs.
"""

from itertools import compress
from math import fsum

from macroserve.core.scheduler.batching.knapsack import Candidates, choose
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import Plan, Step
from macroserve.core.scheduler.sequence import Sequence

NEXT_TO_NOTHING = 1e-6
"""Value of a second of a late request's waiting: it still goes before an empty seat."""


def aptserve_batch(step: Step) -> Plan:
    """Prefills or decodes, whichever have waited longer in sum; prefills by value for their memory.

    What decodes need is seen to before (``Running.make_room``), so all of them run.
    Bound: none for a request that gets late while memory is short; it is served when others end.
    """
    decodes = tuple(step.decoding)
    waiting = list(step.waiting)
    worths = _worths(*_waits(waiting), step)
    if decodes and fsum(worths) <= fsum(_worths(*step.decoding.waits, step)):
        return Plan((), decodes, "decodes have waited longer")
    chosen = _chosen(waiting, worths, step)
    if picks := step.pick(step.config.max_batch_tokens, whole=True, chosen=chosen):
        return Plan(picks, (), "prompts have waited longer")
    return Plan((), decodes, "no prompt to prefill")


def chunked_aptserve_batch(step: Step) -> Plan:
    """All decodes, and as many of the chosen prompts' tokens as fill the chunk (section 6.7)."""
    budget = min(step.config.chunk_tokens, step.config.max_batch_tokens)
    waiting = list(step.waiting)
    chosen = _chosen(waiting, _worths(*_waits(waiting), step), step)
    picks = step.pick(budget - len(step.decoding), chosen=chosen)
    return Plan(picks, tuple(step.decoding), "decodes and a chunk of the chosen prompts")


def _waits(seqs: list[Sequence]) -> tuple[list[float], list[float]]:
    """As those of ``Decoding``."""
    return [seq.pending_since_s for seq in seqs], [seq.patience_s for seq in seqs]


def _worths(since_s: list[float], patience_s: list[float], step: Step) -> list[float]:
    """What one iteration for each is worth, in seconds (the first term of equation 5, with the
    fallback)."""
    now, late_value = step.now, max(step.config.late_value, NEXT_TO_NOTHING)
    worths: list[float] = []
    for index, since in enumerate(since_s):
        pending_s = now - since
        worths.append(late_value * pending_s if pending_s > patience_s[index] else pending_s)
    return worths


def _chosen(waiting: list[Sequence], worths: list[float], step: Step) -> dict[Sequence, CacheKind]:
    """The waiting requests to begin, the most valuable for their memory first.

    One that was just preempted waits for an iteration, although its hidden cache might fit.
    """
    if step.preempted:
        stays = [seq not in step.preempted for seq in waiting]
        waiting, worths = list(compress(waiting, stays)), list(compress(worths, stays))
    blocks = step.running.blocks
    needs = step.reservations(waiting)
    candidates = Candidates(worths, needs, [blocks.hidden_blocks(num) for num in needs])
    num_requests = len(step.waiting) + len(step.running)
    penalty = num_requests * step.latency.rebuild_s(blocks.block_size)
    chosen = choose(candidates, blocks.free, penalty)
    return {waiting[index]: cache for index, cache in chosen.items()}
