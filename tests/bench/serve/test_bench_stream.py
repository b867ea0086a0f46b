"""Reading of streamed answers: events cut anywhere, and chunks with and without tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.api.sse import SseParser
from macroserve.bench.serve.stream import MalformedStreamError, StreamError, StreamMeter

payload_lines = st.binary(max_size=20).filter(lambda b: b"\n" not in b and b"\r" not in b)


@given(
    events=st.lists(st.lists(payload_lines, min_size=1, max_size=3), max_size=6),
    line_end=st.sampled_from([b"\n", b"\r\n"]),
    with_space=st.booleans(),
    data=st.data(),
)
def test_sse_events_survive_any_cut(
    events: list[list[bytes]], line_end: bytes, with_space: bool, data: st.DataObject
) -> None:
    prefix = b"data: " if with_space else b"data:"
    if not with_space:
        events = [[line.lstrip(b" ") for line in event] for event in events]
    stream = b""
    for event in events:
        stream += b": keep-alive" + line_end + b"event: x" + line_end
        stream += b"".join(prefix + line + line_end for line in event) + line_end
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    parser = SseParser()
    payloads: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        payloads += parser.feed(stream[start:end])
    assert payloads == [b"\n".join(event) for event in events]


def test_sse_event_without_its_empty_line_is_not_dispatched() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert parser.feed(b"\n") == [b"2"]


def sse(*chunks: dict | str) -> bytes:
    texts = (chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks)
    return b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)


def text(content: str, finish: str | None = None) -> dict:
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: object) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}], "usage": None}


def usage(num_prompt: int, num_output: int) -> dict:
    return {
        "choices": [],
        "usage": {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": 9},
    }


def metered(*timed: tuple[float, dict | str]) -> StreamMeter:
    meter = StreamMeter()
    for now, chunk in timed:
        meter.feed(sse(chunk), now)
    meter.close()
    return meter


@pytest.mark.parametrize(
    ("timed", "first", "last", "gaps", "num_tokens"),
    [
        pytest.param(
            [(1.0, text("a")), (1.5, text("b")), (3.5, text("c", "length")), (3.6, usage(4, 3))],
            (1.0),
            3.5,
            [0.5, 2.0],
            3,
            id="completions",
        ),
        pytest.param(
            [(1.0, text("")), (2.0, text("é")), (3.0, text("", "length")), (3.0, usage(4, 3))],
            1.0,
            3.0,
            [1.0, 1.0],
            3,
            id="tokens-without-text",
        ),
        pytest.param(
            [(1.0, text("a")), (2.0, text("b")), (9.0, text("", "stop")), (9.0, usage(4, 2))],
            1.0,
            2.0,
            [1.0],
            2,
            id="end-that-is-no-token",
        ),
        pytest.param(
            [(1.0, text("", "length")), (1.0, usage(4, 1))], 1.0, 1.0, [], 1, id="one-silent-token"
        ),
        pytest.param(
            [(1.0, text("a")), (2.0, text("bcd")), (3.0, text("e", "length")), (3.0, usage(4, 5))],
            1.0,
            3.0,
            [1.0, 1.0],
            5,
            id="several-tokens-in-a-chunk",
        ),
        pytest.param(
            [(1.0, text("a")), (2.0, text("b", "length")), (2.0, "[DONE]")],
            1.0,
            2.0,
            [1.0],
            2,
            id="without-usage",
        ),
        pytest.param(
            [
                (0.5, delta(role="assistant", content="")),
                (1.0, delta(content="a")),
                (2.0, delta(reasoning_content="b")),
                (3.0, delta(tool_calls=[{"index": 0}])),
                (3.5, delta("tool_calls")),
                (3.6, usage(4, 3)),
            ],
            1.0,
            3.0,
            [1.0, 1.0],
            3,
            id="chat",
        ),
        pytest.param(
            [(1.0, delta("length", role="assistant", content="a")), (1.0, usage(4, 1))],
            1.0,
            1.0,
            [],
            1,
            id="chat-role-with-content",
        ),
    ],
)
def test_stream_parser_times_chunks_with_tokens(
    timed: list, first: float, last: float, gaps: list[float], num_tokens: int
) -> None:
    meter = metered(*timed)
    assert (meter.first_token_s, meter.last_token_s) == (first, last)
    assert list(meter.gaps_s) == gaps
    assert meter.num_tokens == num_tokens
    assert meter.complete


def test_prompt_tokens_are_those_that_the_endpoint_counts() -> None:
    assert metered((1.0, text("a")), (1.0, usage(17, 1))).num_prompt_tokens == 17
    assert metered((1.0, text("a"))).num_prompt_tokens is None


@pytest.mark.parametrize(
    ("details", "num_cached"),
    [({}, None), ({"prompt_tokens_details": None}, None), ({"prompt_tokens_details": {}}, None)]
    + [({"prompt_tokens_details": {"cached_tokens": count}}, count) for count in (0, 16)],
)
def test_cached_tokens_are_those_that_the_endpoint_tells(
    details: dict, num_cached: int | None
) -> None:
    chunk = usage(17, 1)
    chunk["usage"] |= details
    assert metered((1.0, text("a")), (1.0, chunk)).num_cached_tokens == num_cached


@pytest.mark.parametrize(
    ("chunks", "complete"),
    [
        ([], False),
        ([text("a")], False),
        ([text("a"), usage(1, 1)], False),
        ([text("a", "stop")], True),
        ([text("a"), "[DONE]"], True),
    ],
)
def test_stream_is_complete_with_a_finish_reason_or_the_end_mark(chunks: list, complete: bool):
    assert metered(*((1.0, chunk) for chunk in chunks)).complete is complete


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
        ({"error": {"code": 500}}, "{'code': 500}"),
        ({"error": "no luck"}, "no luck"),
    ],
)
def test_stream_with_an_error_event_reports_it(chunk: dict, message: str) -> None:
    with pytest.raises(StreamError) as told:
        metered((1.0, chunk))
    assert str(told.value) == message


@pytest.mark.parametrize(
    "chunk", ["<html>", "{", '"text"', '{"choices": 3}', '{"usage": {"completion_tokens": "x"}}']
)
def test_stream_event_that_is_no_chunk_is_malformed(chunk: str) -> None:
    with pytest.raises(MalformedStreamError):
        metered((1.0, chunk))


def test_stream_bytes_that_are_no_text_are_malformed() -> None:
    with pytest.raises(MalformedStreamError):
        StreamMeter().feed(b'data: {"choices": [{"text": "\xff"}]}\n\n', 1.0)
