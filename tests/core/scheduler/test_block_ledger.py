"""Free and held blocks always add up to the pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.blocks import BlockLedger, CacheKind
from macroserve.core.scheduler.engine_cache import MISS


class Engine:
    """An engine whose requests have the given numbers of blocks, some of them shared."""

    def __init__(self, free, allocated=0, shared=()):
        self.free, self.allocated, self._shared = free, allocated, dict(shared)

    def shared_by(self, request_id):
        return self._shared.get(request_id, 0)

    def num_cached(self, request_id, last_found):
        return last_found

    def find(self, request_id):
        return MISS


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_for_tokens_are_rounded_up(tokens, blocks):
    assert BlockLedger(10, 16).blocks_for(tokens) == blocks


def test_block_ledger_after_a_grant_has_more_room():
    ledger = BlockLedger(10, 16)
    ledger.grant("a", 3)
    assert ledger.room("a") == 48
    ledger.grant("a", 1)
    assert ledger.room("a") == 64
    assert (ledger.free, ledger.held_by("a"), ledger.held_by("b")) == (6, 4, 0)
    ledger.release("a")
    ledger.release("b")
    assert ledger.free == 10


@pytest.mark.parametrize("blocks", [0, -1, 11])
def test_block_ledger_grant_beyond_free_blocks_asserts(blocks):
    ledger = BlockLedger(10, 16)
    with pytest.raises(AssertionError, match="granted"):
        ledger.grant("a", blocks)
    assert ledger.free == 10


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=40))
def test_block_ledger_after_any_operations_conserves_blocks(moves):
    ledger = BlockLedger(20, 8)
    for name, blocks in moves:
        if not blocks:
            ledger.release(name)
            assert ledger.held_by(name) == 0
        elif blocks <= ledger.free:
            ledger.grant(name, blocks)
        ledger.check()


def test_block_ledger_check_with_a_lost_block_asserts():
    engine = Engine(free=9)
    with pytest.raises(AssertionError, match="lost"):
        BlockLedger(10, 16, cache=engine).check()


@pytest.mark.parametrize(
    ("hidden_states_per_block", "num_blocks", "hidden"),
    [(32, 1, 1), (32, 2, 1), (32, 3, 2), (24, 3, 2), (24, 4, 3), (8, 2, 4), (None, 5, 5)],
)
def test_block_ledger_counts_hidden_states_by_their_own_size(
    hidden_states_per_block, num_blocks, hidden
):
    ledger = BlockLedger(10, 16, hidden_states_per_block)
    assert ledger.hidden_blocks(num_blocks) == hidden
    ledger.grant("a", hidden)
    assert (
        ledger.room("a", CacheKind.HIDDEN)
        == hidden * (hidden_states_per_block or 16)
        >= num_blocks * 16
    )


def test_block_ledger_of_an_engine_counts_what_requests_may_still_take():
    engine = Engine(free=10)
    ledger = BlockLedger(10, 16, cache=engine)
    ledger.grant("a", 4)
    assert ledger.free == 6
    engine.free, engine.allocated = 9, 1  # of the four
    assert ledger.free == 6
    ledger.release("a")
    engine.free, engine.allocated = 10, 0
    ledger.read_again()
    assert ledger.free == 10
    ledger.check()


def test_block_ledger_of_an_engine_counts_shared_blocks_once():
    engine = Engine(free=6, allocated=4)
    ledger = BlockLedger(10, 16, cache=engine)
    engine.free, engine.allocated = 10, 0
    ledger.grant("a", 4)
    engine.free, engine.allocated = 6, 4
    ledger.grant("b", 5, num_shared=3)
    assert ledger.free == 4, "three of its blocks are there"
    engine.free, engine.allocated, engine._shared = 4, 9, {"a": 3, "b": 3}
    ledger.read_again()
    assert ledger.free == 4
    ledger.release("a")
    assert ledger.free == 5, "before the engine frees the one block that only it has"
    engine.free, engine.allocated, engine._shared = 5, 5, {}
    ledger.read_again()
    assert ledger.free == 5
    ledger.release("b")
    assert ledger.free == 10
    engine.free, engine.allocated = 10, 0
    ledger.read_again()
    ledger.check()


@pytest.mark.parametrize("shared", [-1, 4, 5])
def test_block_ledger_grant_with_nothing_of_its_own_asserts(shared):
    with pytest.raises(AssertionError, match="granted"):
        BlockLedger(10, 16).grant("a", 4, shared)
