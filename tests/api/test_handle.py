"""Signed handles survive the wire, and no mutation is accepted."""

import hashlib
import hmac
import json
import re
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.access_token import LEEWAY_S
from macroserve.api.handle import (
    LIFETIME_S,
    MAX_HANDLE_CHARS,
    HandleError,
    InstanceHandle,
    sign,
    verify,
)
from macroserve.api.keys import KeyRing, Purpose
from macroserve.core.instance_start import InstanceStart
from macroserve.core.status import Pool

KEY = "a key that both sides hold"
RING = KeyRing({Purpose.HANDLES: (KEY,)})
NOW = 1_800_000_000.0
HANDLE = InstanceHandle(
    name="instance-0",
    namespace="llama",
    incarnation=3,
    address="http://10.0.0.7:8000",
    pool=Pool.LP,
    hybrid_cache="on: hidden states take 0.50 of the memory of keys and values",
    tensor_parallel=4,
    pipeline_parallel=1,
    num_blocks=4096,
    block_size=16,
    max_model_len=4096,
    max_num_seqs=128,
    control="http://10.0.0.7:8001",
    prefix_caching="on: prompts share the blocks of a common prefix",
    issued_at=int(NOW),
    expires_at=int(NOW) + LIFETIME_S,
)

counts = st.integers(1, 2**31)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
handles = st.builds(
    InstanceHandle,
    name=names,
    namespace=names,
    incarnation=st.integers(0, 2**31),
    address=st.sampled_from(["http://10.0.0.7:8000", "https://gpu-3.local", "http://[::1]:80"]),
    pool=st.sampled_from(Pool),
    hybrid_cache=st.text(st.characters(codec="utf-8"), max_size=40),
    tensor_parallel=counts,
    pipeline_parallel=counts,
    num_blocks=counts,
    block_size=counts,
    max_model_len=counts,
    max_num_seqs=counts,
    control=st.sampled_from(["http://10.0.0.7:8001", "https://gpu-3.local:2"]),
    prefix_caching=st.text(st.characters(codec="utf-8"), max_size=40),
    start=st.none() | st.builds(InstanceStart, *[st.floats(0, 1e6)] * 3, st.booleans()),
)


def signed(body: str, key: str = KEY) -> str:
    """Return a text that a holder of the key could send but ``sign`` would not."""
    signature = hmac.new(key.encode(), body.encode(), hashlib.sha256).hexdigest()
    return f'{{"handle":{body},"signatures":["{signature}"]}}'


def body_with(**changes: object) -> str:
    return json.dumps({**asdict(HANDLE), **changes}, separators=(",", ":"))


@given(handles)
def test_handle_signed_and_verified_is_unchanged(handle: InstanceHandle) -> None:
    times = {"issued_at": HANDLE.issued_at, "expires_at": HANDLE.expires_at}
    assert verify(sign(handle, RING, NOW), RING, NOW) == replace(handle, **times)


def test_signature_of_a_handle_is_hmac_sha256_over_the_canonical_body() -> None:
    assert sign(HANDLE, RING, NOW) == signed(body_with())


@st.composite
def mutations(draw: st.DrawFn) -> str:
    text = sign(draw(handles), RING, NOW)
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 8)))
    patch = draw(st.text(max_size=8) | st.sampled_from([" ", "\n", '"', ",", "}", "\ud800", "9"]))
    return text[:start] + patch + text[end:]


@given(mutations(), st.data())
def test_handle_with_any_mutation_is_refused(text: str, data: st.DataObject) -> None:
    try:
        handle = verify(text, RING, NOW)
    except HandleError:
        return
    assert sign(handle, RING, NOW) == text  # the patch put back what it took


@given(st.text(max_size=200))
def test_handle_from_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(HandleError):
        verify(text, RING, NOW)


@given(handles, names.filter(lambda key: key != KEY))
def test_handle_signed_with_another_key_is_refused(handle: InstanceHandle, key: str) -> None:
    ring = KeyRing({Purpose.HANDLES: (key,)})
    with pytest.raises(HandleError, match="no signature matches"):
        verify(sign(handle, ring, NOW), RING, NOW)


@pytest.mark.parametrize(
    ("signer", "reader", "holds"),
    [
        (("new", "old"), ("old",), True),
        (("new", "old"), ("new",), True),
        (("old",), ("new", "old"), True),
        (("old",), ("new",), False),
    ],
)
def test_handle_with_one_shared_key_is_accepted(
    signer: tuple[str, ...], reader: tuple[str, ...], holds: bool
) -> None:
    text = sign(HANDLE, KeyRing({Purpose.HANDLES: signer}), NOW)
    ring = KeyRing({Purpose.HANDLES: reader})
    if holds:
        assert verify(text, ring, NOW) == HANDLE
        return
    with pytest.raises(HandleError, match="no signature matches"):
        verify(text, ring, NOW)


@pytest.mark.parametrize(
    ("late_s", "why"),
    [
        (-LEEWAY_S - 1, "issued in the future"),
        (-LEEWAY_S, None),
        (LIFETIME_S + LEEWAY_S, None),
        (LIFETIME_S + LEEWAY_S + 1, "has expired"),
    ],
)
def test_handle_outside_its_validity_is_refused(late_s: float, why: str | None) -> None:
    text = sign(HANDLE, RING, NOW)
    if why is None:
        assert verify(text, RING, NOW + late_s) == HANDLE
        return
    with pytest.raises(HandleError, match=why):
        verify(text, RING, NOW + late_s)


def test_handle_with_fields_of_a_newer_signer_ignores_them() -> None:
    assert verify(signed(body_with(future={"a": [1]})), RING, NOW) == HANDLE


def test_handle_of_an_older_signer_tells_nothing_of_prefix_caching() -> None:
    older = {name: v for name, v in asdict(HANDLE).items() if name != "prefix_caching"}
    text = signed(json.dumps(older, separators=(",", ":")))
    assert verify(text, RING, NOW) == replace(HANDLE, prefix_caching="")


def test_handle_with_a_pool_of_a_newer_signer_is_read_as_lp() -> None:
    assert verify(signed(body_with(pool="xp")), RING, NOW).pool is Pool.LP


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a signed handle"),
        ("null", "not a signed handle"),
        ('{"handle":' + "[" * 4000, "not a signed handle"),
        ("x" * (MAX_HANDLE_CHARS + 1), "longer than 4096"),
        (body_with(), "unknown field"),
        ('{"handle":{}}', "missing required field `signatures`"),
        (sign(HANDLE, RING, NOW)[:-1] + ',"extra":1}', "unknown field"),
        (sign(HANDLE, RING, NOW) + " ", "no signature matches"),
        (signed(body_with(issued_at=0, expires_at=0)), "has expired"),
        (signed(re.sub(r',"issued_at".*}', "}", body_with())), "has expired"),
        (signed("{}"), "missing required field `name`"),
        (signed("[]"), "Expected `object`"),
        (signed(body_with(num_blocks="4096")), "Expected `int`, got `str`"),
        (signed(body_with(num_blocks=4096.0)), "Expected `int`, got `float`"),
        (signed(body_with(num_blocks=True)), "Expected `int`, got `bool`"),
        (signed(body_with(num_blocks=0)), "num_blocks is 0, must be 1 or more"),
        (signed(body_with(incarnation=-1)), "incarnation is -1, must be 0 or more"),
        (signed(body_with(name="")), "name must have 1 to 253 characters"),
        (signed(body_with(hybrid_cache="x" * 254)), "hybrid_cache must have at most 253"),
        (signed(body_with(prefix_caching="x" * 254)), "prefix_caching must have at most 253"),
        (signed(body_with(address="ftp://10.0.0.7")), "address is 'ftp://10.0.0.7', must be like"),
    ],
)
def test_handle_refusal_tells_the_reason(text: str, why: str) -> None:
    with pytest.raises(HandleError) as refusal:
        verify(text, RING, NOW)
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.7:8000", "http://", "http://a b", "http://u@h", "http://h/path", "http://h:x"],
)
def test_handle_address_other_than_a_base_url_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address is"):
        replace(HANDLE, address=address)
