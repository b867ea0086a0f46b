"""The memory cost of a request is the time that others lose by the blocks it holds."""

from macroserve.core.latency import LatencyModel
from macroserve.core.request import Request
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.waiting import WaitingQueue


def memory_cost_s(
    request: Request,
    num_new_tokens: int,
    running: Running,
    waiting: WaitingQueue,
    latency: LatencyModel,
) -> float:
    """Return the seconds that others lose by the request's memory for as long as its response
    takes; 0 if there is enough for all that wait."""
    blocks, decoding = running.blocks, running.decoding
    num_tokens = request.num_prompt_tokens + num_new_tokens
    claimed = waiting.num_prompt_tokens + waiting.predicted_tokens + num_tokens
    if claimed <= blocks.free * blocks.block_size:
        return 0.0
    pool_share = blocks.blocks_for(num_tokens) / blocks.num_blocks
    num_drafted = len(decoding) * decoding.speculation.drafted
    work = latency.work((), len(decoding), decoding.num_tokens, num_drafted=num_drafted)
    num_steps = num_new_tokens / decoding.speculation.emitted
    return pool_share * num_steps * latency.predict(work)
