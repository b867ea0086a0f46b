"""A turn of a conversation after the first."""

from typing import NamedTuple


class Turn(NamedTuple):
    """A turn is one more request of a conversation. Its prompt is all that came before, prompts and
    responses, and a new message."""

    think_s: float
    """Seconds from the end of the response before it to the turn."""
    num_message_tokens: int
    num_output_tokens: int
    text: str = ""
    """Text of the message; empty where the load has lengths alone."""
