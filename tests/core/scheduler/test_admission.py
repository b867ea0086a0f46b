"""Admission reserves memory, chooses caches, and cuts prompts where the engine can cut them."""

import pytest
from support.linear_latency import NOW

from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.config import OVERDUE_TTFTS
from macroserve.core.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("exact_kv", "expected"),
    [
        # A prompt of 100 and the block of its next token, or 115 more for a response of 100.
        (False, [8, 2]),
        (True, [14, 8]),
    ],
)
def test_reservation_of_blocks_follows_the_strategy(make_step, exact_kv, expected):
    step = make_step(
        "unified", waiting=[100, 10], changes={"exact_kv": exact_kv}, lengths=[100], new=400
    )
    assert [pick.num_blocks for pick in step.pick(512)] == expected


@pytest.mark.parametrize("exact_kv", [False, True])
def test_reservation_is_at_most_the_longest_response(make_step, exact_kv):
    step = make_step(
        "unified", waiting=[100, 10], changes={"exact_kv": exact_kv}, lengths=[100], new=3
    )
    assert [pick.num_blocks for pick in step.pick(512)] == [7, 1]


def test_reservation_of_a_preempted_response_is_its_rest(make_step, make_sequence):
    step = make_step("unified", changes={"exact_kv": True}, lengths=[100])
    seq = make_sequence("r", prompt=100, new=400)
    seq.emit(60, NOW)
    seq.forget_cache()
    step.inputs.waiting.add(seq)
    # 160 tokens, and 46 for the 40 that it is expected to add.
    assert [pick.num_blocks for pick in step.pick(512)] == [13]


def test_begun_prompts_continue_if_no_other_can_begin(make_step):
    """A begun prompt may stand behind one in the order that finds no memory, which begun ones
    hold."""
    step = make_step("unified", waiting=[900], begun=[100], begun_s=0.05, num_blocks=16)
    assert [pick.seq.request_id for pick in step.pick(10_000)] == ["b0"]


SHORT = {"decoding": [1.0] * 6, "waiting": [50], "num_blocks": 23, "hidden_states_per_block": 32}
"""Eleven blocks of 23 are free, and a pool full of hidden states takes 0.7 ms of a step of 32."""


@pytest.mark.parametrize(
    ("name", "fields", "cache"),
    [
        ("unified", {}, CacheKind.HIDDEN),
        ("unified", {"num_blocks": 24}, CacheKind.KV),
        ("unified", {"hidden_states_per_block": None}, CacheKind.KV),
        ("unified", {"hidden_states_per_block": 16}, CacheKind.KV),
        ("unified", {"hidden_states_per_block": 4000}, CacheKind.KV),
        ("vllm", {}, CacheKind.KV),
    ],
    ids=["short", "half is free", "not kept", "not smaller", "too dear", "never"],
)
def test_default_cache_with_short_memory_and_cheap_states_is_hidden(make_step, name, fields, cache):
    (pick,) = make_step(name, **{**SHORT, **fields}).pick(512)
    assert pick.cache is cache
    # Fifty tokens and the block of the next one: five blocks of 16.
    assert pick.num_blocks == (3 if cache is CacheKind.HIDDEN else 5)


@pytest.mark.parametrize(("num_hidden", "cache"), [(0, CacheKind.HIDDEN), (20_000, CacheKind.KV)])
def test_default_cache_excludes_present_rebuild_time_from_the_step(make_step, num_hidden, cache):
    """A pool full of hidden states takes 25 ms of a step of 32, of which 20 are theirs already."""
    step = make_step("unified", **{**SHORT, "hidden_states_per_block": 1087})
    step.inputs.decoding.num_hidden_tokens = num_hidden
    assert [pick.cache for pick in step.pick(512)] == [cache]


def test_default_cache_after_a_preemption_is_kv(make_step):
    queue = make_step("unified", **SHORT).inputs.waiting
    step = make_step("unified", **SHORT, preempted=tuple(queue))
    assert [pick.cache for pick in step.pick(512)] == [CacheKind.KV]


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


NUM_TOKENS = 20
"""Tokens of each response: several of an adapter run at any time."""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adapter_without_a_slot_gets_one_soon_after_it_is_overdue(
    make_scheduler, make_executor, make_request, strategy
):
    scheduler = make_scheduler(strategy, max_adapters=1)
    executor = make_executor(scheduler, {})
    ttft_s = scheduler.config.slo.ttft_s

    def add(name, adapter):
        executor.lengths[name] = NUM_TOKENS
        executor.add(make_request(name, executor.now, 100, NUM_TOKENS, adapter=adapter))

    index, came_s = 0, 0.0
    while executor.now < 10 * OVERDUE_TTFTS * ttft_s:
        index += 1
        if index % 6 == 0:
            add(f"a{index}", "a" if index % 12 else None)
        if index == NUM_TOKENS:
            came_s = executor.now
            add("b", "b")
        executor.step()
    drain_s = 2 * NUM_TOKENS * max(batch.predicted_s for batch in executor.batches)
    assert executor.first_token_s["b"] - came_s > ttft_s, "another adapter has the slot"
    assert executor.first_token_s["b"] - came_s < OVERDUE_TTFTS * ttft_s + drain_s
    executor.drain()
