"""Out-of-order prefills beside decodes, and prefills first on high priority: Ascendra."""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.status import Pool

LP_BATCH_LIMIT = 128
"""Sequences of a low-priority instance (section 6.2)."""

HP_FREE_SHARE = 0.1
"""While more than this share of the KV pool is free, HP takes prefills (section 8.5)."""


def ascendra_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Low priority: decodes, then prefills by value. High priority: prefills, then decodes.

    Bound: decodes of an HP instance wait until seats or memory for prefills run out; where they do
    not all fit beside the prefills, those with the least saved TPOT go first.
    """
    budget = inputs.config.max_batch_tokens
    if inputs.config.pool is Pool.LP:
        limit = min(LP_BATCH_LIMIT, inputs.config.max_num_seqs)
        picks = admission.pick(budget - len(inputs.decoding), max_num_seqs=limit)
        return Plan(picks, tuple(inputs.decoding), "decodes, then prefills by value")

    picks = admission.pick(budget, held_back_blocks=_held_back_blocks(inputs))
    room = budget - sum(pick.num_tokens for pick in picks)
    if room >= len(inputs.decoding):
        return Plan(picks, tuple(inputs.decoding), "prefills, then decodes")
    urgent = sorted(inputs.decoding.values(), key=lambda seq: seq.tpot_budget_until_s)[:room]
    return Plan(picks, tuple(seq.request_id for seq in urgent), "prefills leave few decodes room")


def _held_back_blocks(inputs: IterationInputs) -> int:
    """Memory kept for responses under way: what lengths seen so far make them need, up to a share.

    The elastic batch size of section 6.2.
    """
    expected = inputs.running.num_remaining
    blocks = inputs.running.blocks
    return min(blocks.blocks_for(expected), int(HP_FREE_SHARE * blocks.num_blocks))
