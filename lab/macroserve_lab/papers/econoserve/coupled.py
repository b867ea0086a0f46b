"""EconoServe's coupled baselines: MultiRes and SyncCoupled (sections 2.1 and 2.2).

Both reserve memory for the whole expected request before its prompt begins (exact-allocation), so
that each request counts for the compute and for the memory.
"""

from collections.abc import Sequence as Many
from math import hypot

from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.responses import ResponseGroup
from macroserve.core.scheduler.sequence import Sequence


def multires_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run all decodes, and the requests whose demands are nearest to what is available of compute
    and memory, one after the other until no other fits (MultiRes, UnsyncCoupled in section 2.2).

    The compute available is the target forward size that decodes and begun prompts leave.
    """
    forward_size = min(inputs.config.tuning.chunk_tokens, inputs.config.max_batch_tokens)
    num_tokens = forward_size - inputs.tokens_of(len(inputs.decoding))
    num_begun = sum([seq.num_to_prefill for seq in inputs.running.prefilling.values()])
    blocks, waiting = inputs.running.blocks, _ready(inputs)
    demands = list(
        zip([seq.num_to_prefill for seq in waiting], admission.reservations(waiting), strict=True)
    )
    order = nearest(
        demands, (num_tokens - num_begun, blocks.free), (forward_size, blocks.num_blocks)
    )
    chosen = dict.fromkeys([waiting[index] for index in order], admission.default_cache)
    picks = admission.pick(num_tokens, chosen=chosen)
    return Plan(
        picks,
        tuple(inputs.decoding),
        "decodes, and requests nearest to what is available",
        repeatable=inputs.only_decodes,
    )


def nearest(
    demands: Many[tuple[int, int]], available: tuple[int, int], sizes: tuple[int, int]
) -> list[int]:
    """Return the indices of the requests to add, in order: each time the one with the least
    Euclidean distance between its demands and what is available, until none fits.

    demands: prompt tokens and KV blocks of each request. A prompt is cut to the tokens that are
        left, and demands no more of the iteration.
    available: tokens and blocks that are left.
    sizes: tokens and blocks of the whole, by which distances are made comparable.
    """
    (num_tokens, num_blocks), (all_tokens, all_blocks) = available, sizes
    left, order = dict(enumerate(demands)), list[int]()

    def distance(index: int) -> float:
        tokens, blocks = left[index]
        return hypot(
            (num_tokens - min(tokens, num_tokens)) / all_tokens, (num_blocks - blocks) / all_blocks
        )

    while num_tokens > 0:
        fitting = [index for index, (_, blocks) in left.items() if blocks <= num_blocks]
        if not fitting:
            break
        order.append(best := min(fitting, key=distance))
        tokens, blocks = left.pop(best)
        num_tokens, num_blocks = num_tokens - tokens, num_blocks - blocks
    return order


def sync_coupled_batch(inputs: IterationInputs, admission: Admission) -> Plan:
    """Run all decodes, and groups of requests that are expected to end together, until the memory
    is allocated (SyncCoupled, section 2.2).

    Requests of one expected length, in blocks as under EconoServe, begin together; a group that
    does not fit is split. No target forward size bounds their prompts, which are to begin at once.
    """
    blocks, waiting = inputs.running.blocks, _ready(inputs)
    needs = dict(zip(waiting, admission.reservations(waiting), strict=True))
    free, members = blocks.free, list[Sequence]()
    for group in ResponseGroup.of(
        waiting, lambda seq: blocks.blocks_for(seq.num_remaining), needs.__getitem__
    ):
        first, _ = group.split(free)
        members += first.members
        free -= sum(first.num_blocks)
    picks = admission.pick(
        inputs.config.max_batch_tokens - inputs.tokens_of(len(inputs.decoding)),
        chosen=dict.fromkeys(members, admission.default_cache),
    )
    return Plan(
        picks,
        tuple(inputs.decoding),
        "decodes, and groups that end together",
        repeatable=inputs.only_decodes,
    )


def _ready(inputs: IterationInputs) -> list[Sequence]:
    """Return the waiting requests, without those that were just preempted: they wait for an
    iteration."""
    return [seq for seq in inputs.waiting if seq not in inputs.preempted]
