"""Signed instance handles, with which any scheduler reaches an instance from any process.

EcoServe (flexible instance migration) pickles a handle and rebuilds it elsewhere. Here a handle is
signed JSON: nothing from a wire is unpickled, and only holders of a key can add an instance to a
cell. For compatibility between versions, unknown fields are ignored and missing ones have defaults.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import msgspec

from macroserve.api.access_token import LEEWAY_S
from macroserve.api.keys import KeyRing, Purpose
from macroserve.core.instance_start import InstanceStart
from macroserve.core.status import Pool

MAX_HANDLE_CHARS = 4096
MAX_NAME_CHARS = 253
LIFETIME_S = 3600
"""Validity of a signature, seconds. A handle is signed on request and used at once, so any value
above a few seconds is enough."""

_BASE_URL = re.compile(r"https?://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")


class HandleError(ValueError):
    """An error that says why a text is not a validly and recently signed handle."""


@dataclass(frozen=True, slots=True)
class InstanceHandle:
    """Addresses and shape of an instance. Raises ValueError for values out of bounds."""

    name: str
    """Name of its Ray actor."""
    namespace: str
    incarnation: int
    """Number that grows with every restart under this name."""
    address: str
    """Base URL of the token server, such as ``http://10.0.0.7:8000``."""
    pool: Pool
    hybrid_cache: str
    """Whether hidden states may replace keys and values, and why."""
    tensor_parallel: int
    pipeline_parallel: int
    num_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    control: str
    """Base URL of the control server."""
    prefix_caching: str = ""
    """``on: `` or ``off: ``, followed by the reason."""
    start: InstanceStart | None = None
    """Measurements of its start, if it sent any."""
    issued_at: int = 0
    """Unix time of signing, seconds; set by ``sign``."""
    expires_at: int = 0
    """Unix time, seconds; set by ``sign``."""

    def __post_init__(self) -> None:
        for name in ("name", "namespace"):
            if not 1 <= len(getattr(self, name)) <= MAX_NAME_CHARS:
                raise ValueError(f"{name} must have 1 to {MAX_NAME_CHARS} characters")
        for name in ("hybrid_cache", "prefix_caching"):
            if len(getattr(self, name)) > MAX_NAME_CHARS:
                raise ValueError(f"{name} must have at most {MAX_NAME_CHARS} characters")
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
    """The wire format. The handle stays raw until a signature is verified."""

    handle: msgspec.Raw
    signatures: tuple[str, ...]


def sign(handle: InstanceHandle, ring: KeyRing, now: float) -> str:
    """Return the handle as JSON with one HMAC-SHA256 per key of the ring.

    now: Unix time, seconds.
    """
    issued_at = int(now)
    stamped = replace(handle, issued_at=issued_at, expires_at=issued_at + LIFETIME_S)
    body = msgspec.json.encode(stamped)
    return _text(body, (_signature(body, key) for key in ring.of(Purpose.HANDLES)))


def verify(text: str, ring: KeyRing, now: float) -> InstanceHandle:
    """Return the handle in a text that ``sign`` made within the last hour with one of the keys.

    Raises HandleError.
    """
    if len(text) > MAX_HANDLE_CHARS:
        raise HandleError(f"the handle is longer than {MAX_HANDLE_CHARS} characters")
    try:
        signed = msgspec.json.decode(text, type=_Signed)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise HandleError(f"the text is not a signed handle: {error}") from error
    body, given = bytes(signed.handle), [s.encode() for s in signed.signatures]
    right = [_signature(body, key).encode() for key in ring.of(Purpose.HANDLES)]
    is_signed = any(hmac.compare_digest(mine, theirs) for mine in right for theirs in given)
    if not is_signed or _text(body, signed.signatures) != text:
        raise HandleError("no signature matches the handle and a key")
    handle = _decode(body)
    if now < handle.issued_at - LEEWAY_S:
        raise HandleError("the handle was issued in the future: do the machines' clocks differ?")
    if now > handle.expires_at + LEEWAY_S:
        raise HandleError("the handle has expired")
    return handle


def _signature(body: bytes, key: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _text(body: bytes, signatures: Iterable[str]) -> str:
    return msgspec.json.encode(_Signed(msgspec.Raw(body), tuple(signatures))).decode()


def _decode(body: bytes) -> InstanceHandle:
    try:
        return msgspec.json.decode(body, type=InstanceHandle)
    except msgspec.MsgspecError as error:
        raise HandleError(f"the handle is not valid: {error}") from error
