"""Tokens of a rehearsal: they depend on the prompt's beginning and the position alone."""

import re
from collections.abc import Sequence
from zlib import crc32

from transformers import PreTrainedTokenizerBase

NAMING_TOKENS = 8
"""First tokens of a prompt that choose its answer. They are the same where another instance
continues the stream, whose prompt holds what was generated."""
MAX_WORDS = 2048


class Answers:
    """The answers, from a tokenizer's whole words.

    Any sequence of such tokens is the same again after decoding and encoding, so that the next turn
    of a conversation finds its beginning in the prefix cache.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> "Answers":
        """Return answers in words of the tokenizer; of any tokens where it has none, or is None."""
        words = _words(tokenizer) if tokenizer is not None else []
        return cls(words or range(vocab_size // 2, vocab_size))

    @staticmethod
    def name(prompt: Sequence[int]) -> int:
        """Return the key of a prompt's answer."""
        return crc32(repr(list(prompt[:NAMING_TOKENS])).encode())

    def token(self, name: int, position: int) -> int:
        return self._tokens[crc32(position.to_bytes(4, "little"), name) % len(self._tokens)]


def _words(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return tokens that are a space and a lower-case word."""
    # Byte-level BPE writes the space as one of these, SentencePiece as the other.
    vocabulary = sorted(tokenizer.get_vocab().items())
    tokens = [token for text, token in vocabulary if re.fullmatch("[\u0120\u2581][a-z]+", text)]
    return [token for token in tokens[:MAX_WORDS] if _is_itself_again(tokenizer, token)]


def _is_itself_again(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    text = tokenizer.decode([token, token])
    return tokenizer.encode(text, add_special_tokens=False) == [token, token]
