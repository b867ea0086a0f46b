"""Wire format of an instance's cached prompt prefixes, which move with its handle."""

from base64 import b64decode, b64encode
from collections.abc import Sequence

from macroserve.api.messages import PREFIX_KEY_BYTES
from macroserve.core.routing.prefixes import NUM_STEPS, STEP_TOKENS, HeldKey

MAX_KEYS = 1 << 14
"""Most keys of a message, at least a million tokens: 153 kB of JSON; a cell accepts 1 MiB."""

_ENTRY_BYTES = PREFIX_KEY_BYTES + 1


def pack_held(held: Sequence[HeldKey]) -> str:
    """Return the most recently used keys in base64, in the given order (least recently used first).

    A byte after each key is the base-2 logarithm of its length in steps.
    """
    return b64encode(b"".join([_entry(each) for each in held[-MAX_KEYS:]])).decode()


def unpack_held(packed: object) -> list[HeldKey]:
    """Return the keys that ``pack_held`` packed. Raises ValueError for other values."""
    if not isinstance(packed, str):
        raise ValueError("the keys are no text")
    data = b64decode(packed, validate=True)
    if len(data) % _ENTRY_BYTES:
        raise ValueError("the last key is cut off")
    if any(step >= NUM_STEPS for step in data[PREFIX_KEY_BYTES::_ENTRY_BYTES]):
        raise ValueError("a key has an unknown step")
    return [_held(data[at : at + _ENTRY_BYTES]) for at in range(0, len(data), _ENTRY_BYTES)]


def _entry(held: HeldKey) -> bytes:
    step = (held.num_tokens // STEP_TOKENS).bit_length() - 1
    return held.key.to_bytes(PREFIX_KEY_BYTES) + step.to_bytes()


def _held(entry: bytes) -> HeldKey:
    return HeldKey(int.from_bytes(entry[:-1]), STEP_TOKENS << entry[-1])
