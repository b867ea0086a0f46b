"""Conversations with their texts, read from a file in ShareGPT's format."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

MAX_BYTES = 2**30
"""Maximum size of a file, which is read as a whole; ShareGPT's own has 0.7 GB."""
MAX_OBJECTS = 20 * 10**6
"""Maximum opening braces in a file, to bound the memory; ShareGPT's own has a tenth of that in
messages, plus those in program texts."""
CHARACTERS_PER_TOKEN = 4
"""Characters of English text per token, for estimates without a tokenizer."""

MIN_TOKENS, MAX_PROMPT_TOKENS, MAX_TOKENS = 4, 1024, 2048
"""Limits on a first message, and together with its response (vLLM's ``is_valid_sequence``)."""

USERS = ("human", "user")
SYSTEM = "system"

TokenCounter = Callable[[str], int]
"""Function that returns the tokens of a text."""


class Exchange(NamedTuple):
    """A user's message and the length of the response."""

    text: str
    num_message_tokens: int
    num_output_tokens: int

    @property
    def is_usual(self) -> bool:
        """Return whether vLLM's benchmark accepts a conversation with this first exchange."""
        num_prompt, num_output = self.num_message_tokens, self.num_output_tokens
        is_long = num_prompt > MAX_PROMPT_TOKENS or num_prompt + num_output > MAX_TOKENS
        return min(num_prompt, num_output) >= MIN_TOKENS and not is_long


@dataclass(frozen=True, slots=True)
class ShareGpt:
    conversations: tuple[tuple[Exchange, ...], ...]
    """Conversations of at least one exchange each."""


class _Message(msgspec.Struct, rename={"sender": "from"}):
    sender: str
    value: str


class _Record(msgspec.Struct):
    conversations: list[_Message] = []


def estimated_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def read_sharegpt(path: Path, num_tokens: TokenCounter = estimated_tokens) -> ShareGpt:
    """Read ``[{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}]``.

    As in vLLM's benchmark, conversations without a response or with a very short or long first
    exchange are left out. Raises ValueError that names the file and the fault.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path} is larger than {MAX_BYTES // 2**30} GiB: cut it")
        data = path.read_bytes()
        if data.count(b"{") > MAX_OBJECTS:
            raise ValueError(f"{path} has more than {MAX_OBJECTS:,} objects: cut it")
        entries = msgspec.json.decode(data, type=list[_Record])
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not in ShareGPT's format: {error}") from None
    read = (tuple(_exchanges(entry.conversations, num_tokens)) for entry in entries)
    usual = tuple(exchanges for exchanges in read if exchanges and exchanges[0].is_usual)
    if not usual:
        raise ValueError(f"{path} has no usable conversation")
    return ShareGpt(usual)


def _exchanges(messages: list[_Message], num_tokens: TokenCounter) -> Iterator[Exchange]:
    """Yield the exchanges from the first user message on, while the two sides alternate."""
    first = next((i for i, each in enumerate(messages) if each.sender in USERS), len(messages))
    for index in range(first, len(messages) - 1, 2):
        message, response = messages[index : index + 2]
        if message.sender not in USERS or response.sender in (*USERS, SYSTEM):
            return
        lengths = num_tokens(message.value), num_tokens(response.value)
        if not all(lengths):
            return
        yield Exchange(message.value, *lengths)
