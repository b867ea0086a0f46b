"""A refusal tells why an instance does not take a request."""

from enum import StrEnum

from macroserve.core.request import Request
from macroserve.core.scheduler.blocks import BlockLedger


class Refusal(StrEnum):
    """The reason tells why an instance does not take a request."""

    TOO_LONG = "its prompt leaves no room for a response within the model's length"
    NEVER_FITS = "its prompt and longest response exceed the KV cache"
    DUPLICATE = "a request of that id is here already"


def refusal_of_size(request: Request, max_model_len: int, blocks: BlockLedger) -> Refusal | None:
    """Return the reason if an instance could never run the request, however long it waits."""
    if request.num_prompt_tokens >= max_model_len:
        return Refusal.TOO_LONG
    if blocks.blocks_for(request.num_prompt_tokens + request.max_new_tokens) > blocks.num_blocks:
        return Refusal.NEVER_FITS
    return None
