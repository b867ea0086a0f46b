"""Ascendra prefills out of order beside decodes on LP instances, and prefills first on HP
instances."""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.status import Pool

LP_BATCH_LIMIT = 128
"""Maximum sequences of a low-priority instance (section 6.2)."""

HP_FREE_SHARE = 0.1
"""Share of free KV blocks above which HP takes prefills (section 8.5)."""


def ascendra_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run decodes, then prefills by value on a low-priority instance; prefills, then decodes on HP.

    Bound: decodes of an HP instance wait until seats or memory for prefills run out; if not all of
    them fit beside the prefills, those with the least saved TPOT go first.
    """
    budget = inputs.config.max_batch_tokens
    if inputs.config.pool is Pool.LP:
        limit = min(LP_BATCH_LIMIT, inputs.config.max_num_seqs)
        num_tokens = budget - inputs.tokens_of(len(inputs.decoding))
        picks = admission.pick(num_tokens, max_num_seqs=limit)
        return Plan(picks, tuple(inputs.decoding), "decodes, then prefills by value")

    picks = admission.pick(budget, held_back_blocks=_held_back_blocks(inputs))
    room = budget - sum(pick.num_tokens for pick in picks)
    if room >= inputs.tokens_of(len(inputs.decoding)):
        return Plan(picks, tuple(inputs.decoding), "prefills, then decodes")
    urgent = sorted(inputs.decoding.values(), key=lambda seq: seq.tpot_budget_until_s)
    urgent = urgent[: room // inputs.tokens_of(1)]
    return Plan(picks, tuple(seq.request_id for seq in urgent), "prefills leave few decodes room")


def _held_back_blocks(inputs: IterationInputs) -> int:
    """Return the blocks kept for responses under way by the lengths seen so far, up to a share.

    This is the elastic batch size of section 6.2.
    """
    expected = inputs.running.num_remaining
    blocks = inputs.running.blocks
    return min(blocks.mean_blocks_for(expected), int(HP_FREE_SHARE * blocks.num_blocks))
