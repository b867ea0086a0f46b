"""Free and held blocks always add up to the pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.blocks import BlockLedger, CacheKind


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
    ledger = BlockLedger(10, 16)
    ledger.free -= 1
    with pytest.raises(AssertionError):
        ledger.check()


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
