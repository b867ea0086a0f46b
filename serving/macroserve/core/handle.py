"""InstanceHandle: what lets any scheduler reach an instance, whichever process it sits in.

EcoServe (flexible instance migration) pickles a handle and rebuilds it elsewhere. Here
it is plain data: signed JSON, so that nothing read from a wire is ever unpickled, and only holders
of the key can add an instance to a cell.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from macroserve.core.views import Pool

MAX_HANDLE_CHARS = 4096
MAX_NAME_CHARS = 253

_BASE_URL = re.compile(r"https?://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")


class HandleError(ValueError):
    """A text is not a handle that a holder of the key signed; the message says why."""


@dataclass(frozen=True, slots=True)
class InstanceHandle:
    """How to reach an instance, and its shape. Raises ValueError for values out of bounds.

    name, namespace: of its Ray actor. incarnation: grows with every restart under that name.
    address: base URL of its token server, such as ``http://10.0.0.7:8000``.
    control: base URL of its control server.
    hybrid_cache: whether hidden states may take the place of keys and values, and why.
    num_blocks, block_size: its KV cache, in blocks and in tokens per block.
    """

    name: str
    namespace: str
    incarnation: int
    address: str
    pool: Pool
    hybrid_cache: str
    tensor_parallel: int
    pipeline_parallel: int
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    control: str

    def __post_init__(self) -> None:
        for name in ("name", "namespace"):
            if not 1 <= len(getattr(self, name)) <= MAX_NAME_CHARS:
                raise ValueError(f"{name} must have 1 to {MAX_NAME_CHARS} characters")
        if len(self.hybrid_cache) > MAX_NAME_CHARS:
            raise ValueError(f"hybrid_cache must have at most {MAX_NAME_CHARS} characters")
        if self.incarnation < 0:
            raise ValueError(f"incarnation is {self.incarnation}, must be 0 or more")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 1 or more")
        for name in ("address", "control"):
            if not _BASE_URL.fullmatch(getattr(self, name)):
                given = getattr(self, name)
                raise ValueError(f"{name} is {given!r}, must be like http://10.0.0.7:8000")


_FIELDS = tuple(field.name for field in fields(InstanceHandle))
_COUNTS = _FIELDS[_FIELDS.index("tensor_parallel") : _FIELDS.index("control")]


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text's shape. The handle stays raw until its signature is known to be right."""

    handle: msgspec.Raw
    signature: str


def sign(handle: InstanceHandle, key: bytes) -> str:
    """JSON text of the handle with its HMAC-SHA256. Raises ValueError for an empty key."""
    return _text(msgspec.json.encode(handle), key)


def verify(text: str, key: bytes) -> InstanceHandle:
    """The handle in a text that ``sign`` made with the same key, unchanged to the character.

    Raises HandleError, and ValueError for an empty key.
    """
    if len(text) > MAX_HANDLE_CHARS:
        raise HandleError(f"the handle is longer than {MAX_HANDLE_CHARS} characters")
    try:
        signed = msgspec.json.decode(text, type=_Signed)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise HandleError(f"the text is not a signed handle: {error}") from error
    body = bytes(signed.handle)
    if not hmac.compare_digest(_text(body, key).encode(), text.encode()):
        raise HandleError("the signature does not match the handle and the key")
    return _decode(body)


def _text(body: bytes, key: bytes) -> str:
    if not key:
        raise ValueError("the key that signs handles is empty")
    signature = hmac.new(key, body, hashlib.sha256).hexdigest()
    return msgspec.json.encode(_Signed(msgspec.Raw(body), signature)).decode()


def _decode(body: bytes) -> InstanceHandle:
    """msgspec ignores a dataclass's unknown fields, hence the way over a mapping."""
    try:
        values = msgspec.json.decode(body, type=dict[str, Any])
        if unknown := sorted(values.keys() - set(_FIELDS)):
            raise HandleError(f"the handle has unknown fields: {', '.join(unknown)}")
        return msgspec.convert(values, InstanceHandle)
    except msgspec.MsgspecError as error:
        raise HandleError(f"the handle is not valid: {error}") from error
