"""Ascendra's batches: decodes with out-of-order prefills on LP, prefills first on HP instances."""

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.config import MIN_CHUNK_TOKENS
from macroserve.core.scheduler.iteration import IterationInputs, Pick, Plan, Resume
from macroserve.core.status import Pool


def ascendra_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan decodes, then prefills by value on an LP instance; prefills, then decodes on HP.

    Bound: if the decodes of an LP instance leave no time, starved prompts get a whole batch.
    Decodes of an HP instance wait until seats or memory for prefills run out; if there is no room
    for all of them, those with the least saved TPOT go first.
    """
    if inputs.config.pool is Pool.LP:
        return _lp_batch(inputs, admission)
    num_held_back = _held_back_blocks(inputs)
    picks = admission.pick(inputs.config.max_batch_tokens, held_back_blocks=num_held_back)
    return prefills_first(inputs, picks)


def _lp_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Plan all decodes, and prefills within the budgets of Algorithm 1: time (C), memory (M) and
    tokens (N). The last prefill is cut, since a long prompt would never fit as a whole."""
    decodes = tuple(inputs.decoding)
    num_tokens = inputs.config.max_batch_tokens - inputs.tokens_of(len(decodes))
    if decodes and not inputs.starved:
        in_time = inputs.prefill_tokens_within(_longest_step_s(inputs))
        if in_time < MIN_CHUNK_TOKENS:
            return Plan(
                (),
                decodes,
                "decodes leave no time for prefills",
                slack_exhausted=inputs.may_prefill,
            )
        num_tokens = min(num_tokens, in_time)
    limit = min(inputs.config.tuning.lp_batch_size, inputs.config.max_num_seqs)
    picks = admission.pick(num_tokens, max_num_seqs=limit)
    return Plan(picks, decodes, "decodes, then prefills by value")


def _longest_step_s(inputs: IterationInputs) -> float:
    """Return the longest predicted step that keeps the decodes' tightest target in nine of ten
    cases, seconds: a step planned to take exactly that time would miss it half of the time."""
    decoding = inputs.decoding
    per_token_s = decoding.min_tpot_s * decoding.speculation.emitted
    return min(per_token_s, decoding.min_tbt_s) / inputs.latency.error_factor


def prefills_first(
    inputs: IterationInputs, picks: list[Pick], resumes: tuple[Resume, ...] = ()
) -> Plan:
    """Return the plan of an HP instance: the prefills, and decodes in the remaining room.

    resumes: paused responses, which continue if the batch has room for all decodes.
    """
    room = inputs.config.max_batch_tokens - sum(pick.num_tokens for pick in picks)
    decodes = inputs.decodes_with(resumes)
    if room >= inputs.tokens_of(len(decodes)):
        return Plan(picks, decodes, "prefills, then decodes", resumes)
    urgent = sorted(inputs.decoding.values(), key=lambda seq: seq.tpot_budget_until_s)
    urgent = urgent[: room // inputs.tokens_of(1)]
    return Plan(picks, tuple(seq.request_id for seq in urgent), "prefills leave few decodes room")


def _held_back_blocks(inputs: IterationInputs) -> int:
    """Return the blocks kept for the predicted lengths of running responses, up to a share of all
    (elastic batch size, section 6.2)."""
    expected = inputs.running.num_remaining
    blocks, share = inputs.running.blocks, inputs.config.tuning.hp_free_share
    return min(blocks.mean_blocks_for(expected), int(share * blocks.num_blocks))
