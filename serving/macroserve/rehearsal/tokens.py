"""Tokens of a rehearsal: they depend on the prompt's beginning and the position alone.

So do the drafted tokens that are accepted.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from zlib import crc32

from vllm.tokenizers import TokenizerLike

NAMING_TOKENS = 8
"""First tokens of a prompt that choose its answer. They are the same where another instance
continues the stream, whose prompt holds what was generated."""
MAX_WORDS = 2048


class Answers:
    """The answers, from a tokenizer's whole words.

    Any sequence of such tokens is the same again after decoding and encoding, so that the next turn
    of a conversation finds its beginning in the prefix cache.

    acceptance: probability that a drafted token is accepted if those before it are.
    """

    def __init__(self, tokens: Sequence[int], acceptance: float) -> None:
        self._tokens = tokens
        self._acceptance = acceptance

    @classmethod
    def of(
        cls, tokenizer: TokenizerLike | None, vocab_size: int, acceptance: float = 0.0
    ) -> "Answers":
        """Return answers in words of the tokenizer; of any tokens where it has none, or is None."""
        words = _words(tokenizer) if tokenizer is not None else []
        return cls(words or range(vocab_size // 2, vocab_size), acceptance)

    @staticmethod
    def name(prompt: Sequence[int]) -> int:
        """Return the key of a prompt's answer."""
        return crc32(repr(list(prompt[:NAMING_TOKENS])).encode())

    def tokens(self, name: int, first: int, num: int) -> list[int]:
        """Return the tokens from a position of the stream, the prompt's tokens included."""
        return [
            self._tokens[_hash(name, position) % len(self._tokens)]
            for position in range(first, first + num)
        ]

    def num_accepted(self, name: int, first: int, num_drafts: int) -> int:
        """Return how many tokens drafted from a position on are accepted."""
        for number in range(num_drafts):
            # Apart from the hash that chooses the token.
            if _hash(name ^ 0xFFFFFFFF, first + number) >= self._acceptance * 2**32:
                return number
        return num_drafts


def _hash(name: int, position: int) -> int:
    """Return 32 bits. Those of a CRC would be alike for successive positions."""
    text = name.to_bytes(4, "little") + position.to_bytes(4, "little")
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "little")


def _words(tokenizer: TokenizerLike) -> list[int]:
    """Return tokens that are a space and a lower-case word."""
    # Byte-level BPE writes the space as one of these, SentencePiece as the other.
    vocabulary = sorted(tokenizer.get_vocab().items())
    tokens = [token for text, token in vocabulary if re.fullmatch("[\u0120\u2581][a-z]+", text)]
    return [token for token in tokens[:MAX_WORDS] if _is_itself_again(tokenizer, token)]


def _is_itself_again(tokenizer: TokenizerLike, token: int) -> bool:
    text = tokenizer.decode([token, token])
    return tokenizer.encode(text, add_special_tokens=False) == [token, token]
