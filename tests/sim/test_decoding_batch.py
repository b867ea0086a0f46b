"""Responses that decode together have the same state as if updated token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.request import Request, Slo
from macroserve.sim.device import DecodingBatch, SimRequest


def record(name, num_output, *, hidden=False, emitted=1):
    made = SimRequest(Request(name, 0.0, 10, 100, Slo(1.0, 0.1)), num_output)
    made.is_hidden = hidden
    made.emit([0.5] * emitted)
    return made


moves = st.one_of(
    st.tuples(st.just("add"), st.integers(2, 9), st.booleans()),
    st.tuples(st.just("step"), st.integers(1, 4), st.none()),
    st.tuples(st.just("pop"), st.integers(0, 9), st.none()),
)


@given(st.lists(moves, max_size=40))
def test_decoding_batch_gives_each_request_the_times_of_its_steps(moves):
    streams, model, now, num_added = DecodingBatch(), {}, 1.0, 0
    for move, number, hidden in moves:
        if move == "add":
            num_added += 1
            name = f"r{num_added}"
            streams.add(record(name, number, hidden=hidden))
            model[name] = record(name, number, hidden=hidden)
        elif move == "pop" and model:
            name = sorted(model)[number % len(model)]
            check_same(streams.pop(name), model.pop(name))
        elif move == "step" and model:
            assert streams.num_steps_left == min(
                r.num_output - r.num_emitted for r in model.values()
            )
            ends_s = [now + 0.1 * (i + 1) for i in range(min(number, streams.num_steps_left))]
            now = ends_s[-1]
            for each in model.values():
                for end_s in ends_s:
                    each.emit([end_s])
            ended = {each.request.request_id: each for each in streams.step(ends_s)}
            assert set(ended) == {name for name, each in model.items() if each.ended}
            for name, each in ended.items():
                check_same(each, model.pop(name))
        assert list(streams) == list(model) and len(streams) == len(model)
        assert streams.num_tokens == sum(each.num_tokens for each in model.values())
        hidden_ones = [each for each in model.values() if each.is_hidden]
        assert streams.num_hidden == len(hidden_ones)
        assert streams.num_hidden_tokens == sum(each.num_tokens for each in hidden_ones)


def check_same(left, expected):
    assert (left.num_emitted, left.first_s, left.last_s) == (
        expected.num_emitted,
        expected.first_s,
        expected.last_s,
    )
    assert list(left.gaps_s) == pytest.approx(list(expected.gaps_s))


def test_request_added_last_begins_to_decode_with_the_next_batch():
    streams, first, second = DecodingBatch(), record("a", 9), record("b", 9, emitted=2)
    streams.add(first)
    streams.add(second)
    streams.begin(3.0)
    streams.begin(4.0)
    assert (first.decoding_s, second.decoding_s) == (3.0, 0.0), "the second did before it came"


def test_decoding_batch_others_are_the_requests_not_named():
    streams = DecodingBatch()
    for name in "abc":
        streams.add(record(name, 9))
    assert streams.others(["b", "x"]) == ["a", "c"]
    assert "a" in streams and "x" not in streams
