"""A future version of the messages between pods, for a test of upgrades.

Every message and handle has an unknown field, phases have other names, and a kind of message is
new. The module is in an image's site-packages and changes the messages that msgspec encodes.
"""

from typing import Any

import msgspec

_Encoder = msgspec.json.Encoder
_OWN = "macroserve."
_CANONICAL = "_Signed"
"""The envelope of a signed handle, whose text is compared."""


class LaterEncoder:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._encoder = _Encoder(*args, **kwargs)

    def encode(self, message: Any) -> bytes:
        return _later(message, self._encoder.encode(message))


def encode(message: Any, **kwargs: Any) -> bytes:
    return LaterEncoder(**kwargs).encode(message)


def _later(message: Any, text: bytes) -> bytes:
    kind = type(message)
    if not kind.__module__.startswith(_OWN) or kind.__name__ == _CANONICAL:
        return text
    if kind.__name__ == "Settled":
        return b'{"type":"later","what":[1]}'
    text = text.replace(b'"phase":"', b'"phase":"later-')
    return text[:-1] + b',"later":[1]}' if text.startswith(b'{"') else text


msgspec.json.Encoder = LaterEncoder  # type: ignore[misc]
msgspec.json.encode = encode
