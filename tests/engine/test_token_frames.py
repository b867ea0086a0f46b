"""Frames carry tokens of many streams, however the network cuts them."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.token_requests import token_request

from macroserve.engine import token_frames
from macroserve.engine.token_frames import Call, FrameParser, Item, decode_call, encode, frames
from macroserve.engine.tokens import Choice, Logprobs, pack, unpack

LOGPROBS = Logprobs(b"\x05\x00\x00\x00", b"\x00\x00\x00\xbf", b"\x01\x00\x00\x00")
ITEMS = [
    Item(0, [1, 2], num_cached=32),
    Item(7, [], "abort", "macroserve:offload"),
    Item(8, [5], "stop", 5, LOGPROBS),
    Item(9, error="the engine failed"),
    Item(10, [6], prompt_logprobs=LOGPROBS),
]


def test_choice_of_an_item_has_all_that_it_tells() -> None:
    assert ITEMS[4].choice == Choice([6], prompt_logprobs=LOGPROBS)
    assert [item.choice for item in ITEMS[:3]] == [
        Choice([1, 2], num_cached=32),
        Choice([], "abort", "macroserve:offload"),
        Choice([5], "stop", 5, LOGPROBS),
    ]


@given(
    sizes=st.lists(st.integers(0, 4), max_size=10), cuts=st.lists(st.integers(0, 900), max_size=10)
)
def test_frame_parser_with_a_connection_cut_anywhere_yields_the_same_frames(
    sizes: list[int], cuts: list[int]
) -> None:
    sent = [ITEMS[:size] for size in sizes]
    data = b"".join(b"".join(frames(items)) for items in sent)
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parser = FrameParser()
    read = [f for begin, end in itertools.pairwise(borders) for f in parser.feed(data[begin:end])]
    assert read == sent


def test_items_that_are_too_much_for_a_frame_become_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_frames, "MAX_FRAME_BYTES", 64)
    items = [Item(stream, [stream] * 5) for stream in range(20)]
    parts = list(frames(items))
    assert len(parts) > 1
    assert all(len(part) <= 64 + 4 for part in parts)
    assert [item for part in FrameParser().feed(b"".join(parts)) for item in part] == items


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 200 OK\r\n",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x03\x91\x91\xa1",
        b"\x00\x00\x00\x05\x91\x91\xa3abc"[:9],
    ],
)
def test_frame_parser_with_anything_else_raises(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        list(FrameParser().feed(data + b"\x00" * 4))


def test_call_after_the_wire_is_unchanged() -> None:
    request = token_request(
        "r", range(300), 9, adapter="sql", cache_salt="s", features=b"x", reasoning_ended=True
    )
    call = Call("connection", 7, request)
    assert decode_call(encode(call)) == call


def test_attempt_after_tokens_has_them_in_its_prompt_and_no_logprobs_of_it() -> None:
    sampling = {"min_tokens": 5, "prompt_logprobs": 1, "skip_reading_prefix_cache": True, "seed": 7}
    request = token_request("r", [1, 2], 9, sampling=sampling)
    info = replace(request.info, route_id="second", num_streamed_tokens=3)
    assert request.attempt(info, []) == replace(request, info=info)
    attempt = request.attempt(info, [3, 4, 5])
    assert (attempt.info, unpack(attempt.token_ids)) == (info, [1, 2, 3, 4, 5])
    assert (attempt.max_new_tokens, attempt.sampling) == (6, {"min_tokens": 2, "seed": 7})


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_packed_token_ids_are_the_same_unpacked(token_ids: list[int]) -> None:
    data = pack(token_ids)
    assert len(data) == 4 * len(token_ids)
    assert unpack(data) == token_ids


def test_packed_token_ids_are_little_endian() -> None:
    assert pack([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00\x00\x00\x02"])
def test_bytes_that_are_not_token_ids_raise(data: bytes) -> None:
    with pytest.raises(ValueError, match="not token ids"):
        unpack(data)
