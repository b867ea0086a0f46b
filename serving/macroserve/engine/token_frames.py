"""The protocol between an ingress and an instance: one connection with the tokens of all streams.

``GET FRAMES_PATH`` opens the connection; its response is an endless sequence of frames. ``POST
CALL_PATH`` starts a stream and answers 200 or an error; ``POST CANCEL_PATH`` ends one. Bodies and
frames are msgpack. An instance sends at most one frame per step, with the step's tokens of all
streams of the connection, and an empty frame after INTERVAL_S without any, so that a broken
connection differs from a long queue.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from macroserve.engine.tokens import Choice, Logprobs, TokenRequest

FRAMES_PATH = "/macroserve/frames"
CALL_PATH = "/macroserve/generate"
CANCEL_PATH = "/macroserve/cancel"

CONNECTION_HEADER = "X-Macroserve-Connection"
"""Header of ``GET FRAMES_PATH`` with the connection's random id."""
INTERVAL_S = 1.0
MAX_FRAME_BYTES = 64 << 20
"""Maximum size of a frame or a call."""
_LENGTH_BYTES = 4


class Item(msgspec.Struct, array_like=True):
    """Tokens of one stream since the previous frame."""

    stream: int
    """Number of the stream in its connection."""
    token_ids: list[int] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    error: str | None = None
    """Reason why the request failed in the engine."""
    num_cached: int = 0
    prompt_logprobs: Logprobs | None = None

    @property
    def choice(self) -> Choice:
        return Choice(
            self.token_ids,
            self.finish_reason,
            self.stop_reason,
            self.logprobs,
            self.num_cached,
            self.prompt_logprobs,
        )


class Call(msgspec.Struct, frozen=True):
    """Body of ``POST CALL_PATH``, which starts a stream."""

    connection: str
    stream: int
    request: TokenRequest


class Cancel(msgspec.Struct, frozen=True):
    """Body of ``POST CANCEL_PATH``, for a stream that ends before its last token."""

    connection: str
    stream: int
    num_tokens: int | None = None
    """Tokens of the stream up to the one that completed a stop string; None if its client left."""


_encode = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(list[Item]).decode

encode = _encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_cancel = msgspec.msgpack.Decoder(Cancel).decode


def frames(items: Sequence[Item]) -> Iterator[bytes]:
    """Yield the items in one frame, or in several if that is too large."""
    data = _encode(items)
    if len(data) > MAX_FRAME_BYTES and len(items) > 1:
        middle = len(items) // 2
        yield from frames(items[:middle])
        yield from frames(items[middle:])
    else:
        yield len(data).to_bytes(_LENGTH_BYTES, "big") + data


class FrameParser:
    """Parser of a connection's bytes, in arbitrary chunks."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterable[list[Item]]:
        """Yield the frames that end in ``data``. Raises msgspec.DecodeError for malformed or too
        large frames."""
        self._data += data
        begin = 0
        while len(self._data) - begin >= _LENGTH_BYTES:
            body = begin + _LENGTH_BYTES
            length = int.from_bytes(self._data[begin:body], "big")
            if length > MAX_FRAME_BYTES:
                raise msgspec.DecodeError(f"a frame of {length} bytes is too large")
            if len(self._data) < body + length:
                break
            yield _decode_items(self._data[body : body + length])
            begin = body + length
        del self._data[:begin]
