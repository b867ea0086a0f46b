"""Blocks of prompts are shared, stay findable, and are never lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.block_pool import BlockPool, HashChain
from macroserve.core.scheduler.blocks import MISS, Hit

SIZE = 4


def hashes(tokens, salt=""):
    return HashChain(SIZE, salt).extend(tokens)


def pool_of(num_blocks=8, **prompts):
    """Return a pool that knows requests with these prompts."""
    pool = BlockPool(num_blocks, SIZE)
    for name, tokens in prompts.items():
        pool.add(name, len(tokens), hashes(tokens))
    return pool


def test_hash_chain_does_not_depend_on_how_tokens_come():
    whole, pieces = HashChain(SIZE), HashChain(SIZE)
    tokens = list(range(11))
    found = pieces.extend(tokens[:3]) + pieces.extend(tokens[3:4]) + pieces.extend(tokens[4:])
    assert found == whole.extend(tokens)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("other", "salt", "num_common"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], "", 2),
        ([1, 2, 3, 4, 5, 6, 7, 9], "", 1),
        ([9, 2, 3, 4, 5, 6, 7, 8], "", 0),
        ([5, 6, 7, 8, 5, 6, 7, 8], "", 0),
        ([1, 2, 3, 4, 5, 6, 7, 8], "mine", 0),
    ],
)
def test_hash_of_a_block_stands_for_all_tokens_up_to_it(other, salt, num_common):
    common = set(hashes([1, 2, 3, 4, 5, 6, 7, 8])) & set(hashes(other, salt))
    assert len(common) == num_common


@pytest.mark.parametrize(
    ("length", "num_tokens"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 8), (20, 8)]
)
def test_prompt_finds_whole_blocks_and_computes_its_last_token(length, num_tokens):
    pool = pool_of(a=list(range(9)), b=list(range(length)))
    pool.compute("a", 9)
    assert pool.find("b").num_tokens == num_tokens


def test_prompt_finds_only_what_was_computed():
    pool = pool_of(a=list(range(12)), b=list(range(20)))
    assert pool.find("b") == MISS
    pool.compute("a", 7)
    assert pool.find("b") == Hit(4, 1)
    pool.compute("a", 12)
    assert pool.find("b") == Hit(12, 3)
    pool.remove("a")
    assert pool.find("b") == Hit(12, 0)
    assert pool.find("a") == MISS, "it has ended"


def test_shared_blocks_are_counted_once():
    pool = pool_of(a=list(range(9)), b=list(range(12)))
    pool.compute("a", 9)
    assert (pool.free, pool.allocated, pool.shared_by("a")) == (5, 3, 0)
    pool.compute("b", 12)
    assert (pool.free, pool.allocated) == (4, 6)
    assert (pool.shared_by("a"), pool.shared_by("b")) == (2, 2)
    pool.remove("a")
    assert (pool.free, pool.allocated, pool.shared_by("b")) == (5, 3, 0)
    assert pool.find("b") == MISS, "it runs"


def test_least_recently_used_blocks_go_first_and_the_last_of_a_prompt_before_its_first():
    old, recent, big = list(range(9)), list(range(100, 109)), list(range(200, 220))
    pool = pool_of(8, old=old, recent=recent, again=old, later=recent, big=big)
    for name in ("old", "recent"):
        pool.compute(name, 9)
        pool.remove(name)
    pool.compute("big", 20)  # four blocks never held a whole one's tokens
    assert pool.find("again").num_tokens == 4
    assert pool.find("later").num_tokens == 8


def test_response_is_found_by_the_next_turn():
    pool, chain = BlockPool(8, SIZE), HashChain(SIZE)
    pool.add("turn", 3, chain.extend([1, 2, 3]))
    pool.compute("turn", 3)
    for token in (4, 5, 6):
        pool.append("turn", chain.extend([token]))
        pool.compute("turn", token)
    pool.remove("turn")
    pool.add("next", 7, hashes([1, 2, 3, 4, 5, 6, 7]))
    assert pool.find("next").num_tokens == 4


def test_released_request_begins_again_with_what_is_left():
    pool = pool_of(a=list(range(12)))
    pool.compute("a", 12)
    pool.release("a")
    assert (pool.free, pool.allocated) == (8, 0)
    assert pool.find("a") == Hit(8, 0)


NAMES = "abcd"
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=24)
moves = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["compute", "release", "remove"]), prompts),
    max_size=40,
)


@given(moves)
def test_pool_after_any_moves_has_lost_no_block(moves):
    pool, known, computed = BlockPool(12, SIZE), dict[str, list[int]](), dict[str, int]()
    for name, move, tokens in moves:
        if name not in known:
            pool.add(name, len(tokens), hashes(tokens))
            known[name] = tokens
        if move == "compute":
            hit = pool.find(name)
            most = max(hit.num_tokens + 1, min(len(known[name]), computed.get(name, 0) + 5))
            needed = -(-most // SIZE) - -(-computed.get(name, 0) // SIZE) - hit.num_held_blocks
            if needed <= pool.free and most >= computed.get(name, 0):
                pool.compute(name, most)
                computed[name] = most
        elif move == "release":
            pool.release(name)
            computed.pop(name, None)
        else:
            pool.remove(name)
            known.pop(name)
            computed.pop(name, None)
        held = {n: -(-c // SIZE) for n, c in computed.items()}
        assert pool.allocated == sum(held.values())
        assert 12 - pool.allocated <= pool.free <= 12
        assert all(pool.shared_by(n) <= held.get(n, 0) for n in NAMES)
    for name in known:
        pool.remove(name)
    assert (pool.free, pool.allocated) == (12, 0)
