"""Free and held blocks always add up to the pool, also where groups of layers share it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.allocating_engine import AllocatingEngine

from macroserve.core.request import Slo
from macroserve.core.scheduler.blocks import MISS, BlockGroup, BlockGroups, BlockLedger, CacheKind
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.strategies import STRATEGIES


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


FULL = BlockGroup(16)
WINDOW = BlockGroup(16, 6, 3)
STATE = BlockGroup(1000, 1, 1)
SLO = Slo(5.0, 0.1)
SIZE = 8
MAX_STEPS = 3000


def whole(num_tokens, size=16):
    return -(-num_tokens // size)


@given(st.integers(1, 1000))
def test_blocks_of_a_request_are_the_sum_of_its_groups(num_tokens):
    groups = BlockGroups([FULL, WINDOW, WINDOW, STATE], 1000)
    full = whole(num_tokens)
    assert groups.prefilling.blocks_for(num_tokens) == full + 2 * min(full, 6) + 1
    assert groups.decoding.blocks_for(num_tokens) == full + 2 * min(full, 3) + 1


@given(st.integers(0, 300), st.sampled_from([(FULL,), (FULL, WINDOW), (WINDOW, STATE)]))
def test_room_is_the_most_tokens_that_the_blocks_hold(num_blocks, groups):
    blocks = BlockGroups(groups, 1000).prefilling
    room = blocks.room(num_blocks)
    assert blocks.blocks_for(room) <= num_blocks
    assert room == 1000 or blocks.blocks_for(room + 1) > num_blocks


@given(st.integers(0, 1000), st.integers(1, 60))
def test_a_single_group_counts_as_a_ledger_without_groups(num_tokens, num_blocks):
    plain, grouped = BlockLedger(100, 16), BlockLedger(100, 16, groups=BlockGroups([FULL], 1600))
    assert plain.blocks_for(num_tokens) == grouped.blocks_for(num_tokens)
    assert plain.block_size == grouped.block_size
    for ledger in (plain, grouped):
        ledger.grant("a", num_blocks)
    assert plain.room("a") == grouped.room("a")
    assert plain.missing("a", num_tokens) == grouped.missing("a", num_tokens)


def test_mean_block_of_groups_holds_what_the_longest_request_has_in_one():
    assert BlockGroups([FULL, WINDOW], 1600).block_size == 1600 // 103
    assert BlockGroups([STATE], 1000).block_size == 1000


def test_ledger_after_a_prompt_takes_back_what_the_prompt_alone_needed():
    ledger = BlockLedger(40, 16, groups=BlockGroups([FULL, WINDOW], 1000))
    ledger.grant("a", ledger.blocks_for(160))
    assert (ledger.held_by("a"), ledger.room("a")) == (16, 160)
    assert ledger.give_back("a")
    assert (ledger.held_by("a"), ledger.room("a"), ledger.free) == (13, 160, 27)
    assert ledger.missing("a", 161) == 1
    ledger.release("a")
    assert ledger.free == 40


class WindowPool:
    """The pool has a group with full attention and some with a window, as vLLM does: what a window
    has passed is freed as the next tokens get their blocks, as far as it is not in flight."""

    def __init__(self, num_blocks, window, num_windowed, max_decoding_tokens):
        self.num_blocks, self._window, self._num_windowed = num_blocks, window, num_windowed
        self._max_decoding_tokens = max_decoding_tokens
        self._computed, self._num_passed = {}, {}
        self.engine = None

    @property
    def allocated(self):
        return sum(map(self._held_by, self._computed))

    @property
    def free(self):
        return self.num_blocks - self.allocated

    def keeps_to(self, name, num_blocks):
        is_settled = self.engine.num_in_flight(name) <= self._max_decoding_tokens
        return is_settled and self._held_by(name) <= num_blocks

    def shared_by(self, name):
        return 0

    def num_cached(self, name, last_found):
        return 0

    def find(self, name):
        return MISS

    def add(self, name, num_tokens, hashes):
        pass

    def compute(self, name, num_computed):
        settled = self._computed.get(name, 0) - self.engine.num_in_flight(name)
        self._num_passed[name] = max(0, settled - self._window + 1) // SIZE
        self._computed[name] = num_computed
        assert self.free >= 0, "vLLM would preempt by itself"

    def release(self, name):
        self._computed.pop(name, None)
        self._num_passed.pop(name, None)

    remove = release

    def _held_by(self, name):
        full = whole(self._computed.get(name, 0), SIZE)
        return full + self._num_windowed * (full - self._num_passed.get(name, 0))


requests = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 150), st.integers(1, 40)),
    min_size=1,
    max_size=15,
)
leavings = st.dictionaries(st.integers(0, 30), st.integers(0, 14), max_size=3)


@pytest.mark.parametrize("name", STRATEGIES)
# Two responses are paused, and fewer blocks are free than there are groups.
@example([(0, 55, 2), (0, 55, 2)], {}, 0, 0, 8)
@given(requests, leavings, st.integers(0, 60), st.integers(0, 2), st.sampled_from([8, 20, 60]))
def test_requests_of_a_model_with_windows_end_within_the_blocks_of_their_engine(
    name, make_latency, make_config, arriving, leaving, num_more, ahead, window
):
    num_windowed, batch_tokens, num_batches = 2, 64, ahead + 1
    sizes = [
        whole(window - 1 + num_tokens, SIZE) + 1
        for num_tokens in (num_batches * batch_tokens, num_batches)
    ]
    groups = (BlockGroup(SIZE), *[BlockGroup(SIZE, *sizes)] * num_windowed)
    # The longest request has room alone, and so have three of the others.
    num_blocks = BlockGroups(groups, 200).prefilling.blocks_for(190) + num_more
    pool = WindowPool(num_blocks, window, num_windowed, num_batches)
    config = make_config(
        name,
        num_blocks=num_blocks,
        block_size=SIZE,
        block_groups=groups,
        max_batch_tokens=batch_tokens,
        max_model_len=200,
        max_num_seqs=8,
    )
    scheduler = InstanceScheduler(config, make_latency(), pool)
    pool.engine = engine = AllocatingEngine(scheduler, pool, ahead)
    for step in range(MAX_STEPS):
        for index, (at, num_prompt, num_tokens) in enumerate(arriving):
            if at == step:
                engine.add(str(index), num_prompt, num_tokens, SLO)
        engine.leave(str(leaving.get(step)))
        goes_on = engine.step()
        assert 0 <= scheduler.running.blocks.free <= num_blocks
        if step > 30 and not goes_on:
            break
    assert not engine.left, "requests never end"
    scheduler.running.blocks.check()
    assert (pool.free, pool.allocated) == (num_blocks, 0)


def test_request_after_its_prompt_leaves_the_blocks_of_its_windows_to_others(make_sequence):
    groups = BlockGroups([FULL, WINDOW], 1000)
    running = Running(BlockLedger(40, 16, groups=groups), pause_when_full=False)
    seq = make_sequence(prompt=144, new=50)
    running.admit(seq, running.blocks.blocks_for(160))
    free = running.blocks.free
    running.make_room()
    assert running.blocks.free == free
    running.start_decoding(seq)
    running.make_room()
    assert (running.blocks.free - free, seq.num_slots) == (3, 160)
