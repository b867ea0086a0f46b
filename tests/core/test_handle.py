"""Signed handles: round trips, refusals, and no mutation that slips through."""

import hashlib
import hmac
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.handle import MAX_HANDLE_CHARS, HandleError, InstanceHandle, sign, verify
from macroserve.core.views import Pool

KEY = b"a key that both sides hold"
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
)


def signed(body: str, key: bytes = KEY) -> str:
    """What a holder of the key could send that ``sign`` would not."""
    signature = hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
    return f'{{"handle":{body},"signature":"{signature}"}}'


def body_with(**changes: object) -> str:
    return json.dumps({**asdict(HANDLE), **changes}, separators=(",", ":"))


@given(handles)
def test_round_trip(handle: InstanceHandle) -> None:
    assert verify(sign(handle, KEY), KEY) == handle


def test_the_signature_is_hmac_sha256_over_the_canonical_body() -> None:
    assert sign(HANDLE, KEY) == signed(body_with())


@st.composite
def mutations(draw: st.DrawFn) -> str:
    text = sign(draw(handles), KEY)
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 8)))
    patch = draw(st.text(max_size=8) | st.sampled_from([" ", "\n", '"', ",", "}", "\ud800", "9"]))
    return text[:start] + patch + text[end:]


@given(mutations(), st.data())
def test_any_mutation_is_refused(text: str, data: st.DataObject) -> None:
    try:
        handle = verify(text, KEY)
    except HandleError:
        return
    assert sign(handle, KEY) == text  # the patch put back what it took


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(HandleError):
        verify(text, KEY)


@given(handles, st.binary(min_size=1, max_size=40).filter(lambda key: key != KEY))
def test_another_key_is_refused(handle: InstanceHandle, key: bytes) -> None:
    with pytest.raises(HandleError, match="signature does not match"):
        verify(sign(handle, key), KEY)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a signed handle"),
        ("null", "not a signed handle"),
        ('{"handle":' + "[" * 4000, "not a signed handle"),
        ("x" * (MAX_HANDLE_CHARS + 1), "longer than 4096"),
        (body_with(), "unknown field"),
        ('{"handle":{}}', "missing required field `signature`"),
        (sign(HANDLE, KEY)[:-1] + ',"extra":1}', "unknown field"),
        (sign(HANDLE, KEY) + " ", "signature does not match"),
        (signed(body_with(extra=1)), "unknown fields: extra"),
        (signed("{}"), "missing required field `name`"),
        (signed("[]"), "Expected `object`"),
        (signed(body_with(num_blocks="4096")), "Expected `int`, got `str`"),
        (signed(body_with(num_blocks=4096.0)), "Expected `int`, got `float`"),
        (signed(body_with(num_blocks=True)), "Expected `int`, got `bool`"),
        (signed(body_with(pool="xp")), "Invalid enum value 'xp'"),
        (signed(body_with(num_blocks=0)), "num_blocks is 0, must be 1 or more"),
        (signed(body_with(incarnation=-1)), "incarnation is -1, must be 0 or more"),
        (signed(body_with(name="")), "name must have 1 to 253 characters"),
        (signed(body_with(address="ftp://10.0.0.7")), "address is 'ftp://10.0.0.7', must be like"),
    ],
)
def test_refusals_say_why(text: str, why: str) -> None:
    with pytest.raises(HandleError) as refusal:
        verify(text, KEY)
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.7:8000", "http://", "http://a b", "http://u@h", "http://h/path", "http://h:x"],
)
def test_an_address_is_a_base_url(address: str) -> None:
    with pytest.raises(ValueError, match="address is"):
        replace(HANDLE, address=address)


def test_an_empty_key_signs_and_verifies_nothing() -> None:
    with pytest.raises(ValueError, match="key that signs handles is empty"):
        sign(HANDLE, b"")
    with pytest.raises(ValueError, match="key that signs handles is empty"):
        verify(sign(HANDLE, KEY), b"")
