"""The parser reads server-sent events of token ids, however the network cuts them."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.engine.tokens import EventParser


def events(tokens: list[list[int]]) -> bytes:
    lines = [
        "data: " + json.dumps({"choices": [{"index": 0, "token_ids": ids, "unknown": 1}]})
        for ids in tokens
    ]
    return ("\n\n".join([*lines, "data: [DONE]"]) + "\n\n").encode()


@given(
    tokens=st.lists(st.lists(st.integers(0, 10**6), max_size=4), max_size=20),
    cuts=st.lists(st.integers(0, 3000), max_size=10),
)
def test_event_parser_with_a_stream_cut_anywhere_yields_the_same_tokens(
    tokens: list[list[int]], cuts: list[int]
) -> None:
    data = events(tokens)
    borders = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parser = EventParser()
    parts = [data[a:b] for a, b in itertools.pairwise(borders)]
    chunks = [chunk for part in parts for chunk in parser.feed(part)]
    assert [chunk.choices[0].token_ids for chunk in chunks] == tokens


def test_event_parser_with_an_error_event_returns_the_error() -> None:
    data = b'data: {"error": {"message": "no", "type": "x", "code": 400}}\n\n'
    (chunk,) = EventParser().feed(data)
    assert chunk.error is not None
    assert (chunk.error.message, chunk.error.code) == ("no", 400)


def test_event_parser_with_a_malformed_event_raises() -> None:
    for event in (b"data: {\n\n", b'data: {"choices": 3}\n\n'):
        with pytest.raises(msgspec.DecodeError):
            list(EventParser().feed(event))
