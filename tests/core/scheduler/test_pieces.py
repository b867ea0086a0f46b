"""Prompts are cut where the engine can cut them."""

import pytest

WHOLE = {"piece_tokens": 4096}


def sizes(picks):
    return [pick.num_tokens for pick in picks]


@pytest.mark.parametrize("strategy", ["sarathi", "unified", "vllm"])
def test_engine_without_chunks_gets_the_first_prompt_whole(make_step, strategy):
    step = make_step(strategy, [0.5], [300, 400], chunk_tokens=64, **WHOLE)
    assert sizes(step.pick(60)) == [300]


def test_engine_without_chunks_gets_no_later_prompt_that_would_be_cut(make_step):
    step = make_step("sarathi", [0.5], [100, 300], **WHOLE)
    assert sizes(step.pick(250)) == [100]


def test_engine_without_chunks_gets_no_prompt_beyond_its_batch(make_step):
    step = make_step("sarathi", [0.5] * 4, [300], max_batch_tokens=303, **WHOLE)
    assert step.pick(60) == []


def test_pieces_end_where_the_state_is_cached(make_step):
    step = make_step("sarathi", [0.5], [300], piece_tokens=64)
    assert sizes(step.pick(150)) == [128]
    assert sizes(step.pick(20)) == [64]


def test_piece_of_a_prompt_under_way_ends_at_the_next_multiple(make_step):
    # 100 tokens of each are computed.
    step = make_step("sarathi", [0.5], begun=[300, 50], piece_tokens=64)
    assert sizes(step.pick(100)) == [92]
    assert sizes(step.pick(10)) == [28]
