"""Running sequences grow, pause or are preempted when blocks run out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.blocks import BlockLedger
from macroserve.core.scheduler.running import Running
from macroserve.core.scheduler.sequence import State


def names(sequences):
    return [seq.request_id for seq in sequences]


@pytest.fixture(scope="session")
def run_up(make_sequence):
    """Add decoding sequences that used up their blocks: ``(name, arrival, blocks)``."""

    def build(num_blocks, *wanted, prefilling=(), **policies):
        running = Running(BlockLedger(num_blocks, 16), **policies)
        for ordinal, (name, arrival_s, blocks) in enumerate((*wanted, *prefilling)):
            prompt = 16 * blocks - 1
            seq = make_sequence(name, ordinal, arrival_s=arrival_s, prompt=prompt, new=200)
            running.admit(seq, blocks)
            if (name, arrival_s, blocks) not in prefilling:
                seq.emit(1, now=0.0)  # 16 * blocks tokens: the next needs a new block
                running.start_decoding(seq)
        return running

    return build


@pytest.mark.parametrize("pause_when_full", [False, True])
def test_running_with_free_blocks_gives_each_sequence_one(run_up, pause_when_full):
    running = run_up(8, ("a", 0, 2), ("b", 1, 2), pause_when_full=pause_when_full)
    assert running.make_room() == []
    assert running.blocks.free == 2
    assert [seq.num_slots for seq in running] == [48, 48]
    assert running.make_room() == [] and running.blocks.free == 2  # once is enough


def test_running_without_free_blocks_preempts_the_latest_arrival(run_up):
    running = run_up(6, ("late", 9, 2), ("a", 1, 2), ("b", 2, 2), pause_when_full=False)
    preempted = running.make_room()
    assert names(preempted) == ["late"]
    assert preempted[0].state is State.WAITING and preempted[0].num_to_prefill == 32
    assert names(running) == ["a", "b"]
    assert running.blocks.free == 0


def test_sequence_that_arrived_last_preempts_itself(run_up):
    running = run_up(4, ("a", 1, 2), ("b", 2, 2), pause_when_full=False)
    running.decoding["a"].num_slots = 99  # a has room; only b is short
    assert names(running.make_room()) == ["b"]
    assert names(running) == ["a"]


def test_running_leaves_the_choice_to_the_policy_until_it_has_chosen(run_up):
    holders = (("late", 9, 2), ("a", 1, 2), ("b", 2, 2))
    running = run_up(7, *holders, pause_when_full=False, policy_preempts=True)
    assert running.make_room() == []
    assert names(running.decoding.short) == ["a", "b"]
    assert names(running.make_room([running.decoding["a"]])) == ["a"]
    assert names(running) == ["late", "b"] and not running.decoding.short


def test_running_preempts_the_latest_beside_the_chosen_who_free_too_little(run_up):
    holders = (("late", 9, 2), ("a", 1, 2), ("b", 2, 2), ("c", 3, 2))
    running = run_up(8, *holders, pause_when_full=False, policy_preempts=True)
    running.make_room()
    assert names(running.make_room([running.decoding["b"]])) == ["b", "late"]


def test_prompt_that_has_begun_can_be_preempted(run_up):
    running = run_up(6, ("a", 1, 2), pause_when_full=False, prefilling=(("p", 5, 4),))
    assert names(running.make_room()) == ["p"]


def test_sequence_without_a_block_pauses_and_continues_later(run_up):
    running = run_up(5, ("a", 1, 2), ("b", 2, 2), pause_when_full=True)
    assert running.make_room() == []
    assert names(running.decoding.values()) == ["a"]
    assert names(running.paused.values()) == ["b"]
    assert running.blocks.held_by("b") == 2, "a paused sequence keeps its cache"
    running.remove(running.decoding["a"], State.FINISHED)
    assert running.make_room() == []
    assert names(running.decoding.values()) == ["b"] and not running.paused
    assert running.decoding["b"].num_slots == 48


def test_paused_sequence_gets_blocks_before_running_ones(run_up):
    running = run_up(6, ("a", 1, 2), ("b", 2, 2), pause_when_full=True, prefilling=(("p", 5, 1),))
    running.make_room()
    assert names(running.paused.values()) == ["b"]
    running.decoding.change(seq := running.decoding["a"], seq.emit, 16, 1.0)  # short again
    running.remove(running.prefilling["p"], State.FINISHED)
    running.make_room()
    assert names(running.paused.values()) == ["a"]
    assert names(running.decoding.values()) == ["b"]


def test_running_with_all_paused_preempts_the_latest(run_up):
    running = run_up(4, ("a", 2, 2), ("b", 1, 2), pause_when_full=True)
    assert names(running.make_room()) == ["a"]
    assert names(running.decoding.values()) == ["b"]


def test_running_while_a_prompt_can_continue_preempts_none(run_up):
    running = run_up(6, ("a", 1, 2), pause_when_full=True, prefilling=(("p", 5, 4),))
    assert running.make_room() == []
    assert names(running.paused.values()) == ["a"]
    assert names(running) == ["p", "a"]


def test_sequence_removed_in_any_state_frees_its_blocks(run_up):
    for name, state in (("p", State.FINISHED), ("a", State.FINISHED), ("b", State.WAITING)):
        running = run_up(
            9, ("a", 1, 2), ("b", 2, 3), pause_when_full=True, prefilling=(("p", 5, 4),)
        )
        running.make_room()
        seq = next(seq for seq in running if seq.request_id == name)
        held = running.blocks.held_by(name)
        running.remove(seq, state)
        assert running.blocks.free >= held and running.blocks.held_by(name) == 0
        running.blocks.check()
        assert name not in names(running)


@pytest.fixture(scope="session")
def decode(make_sequence):
    """Add a response to a prompt of two blocks, in further blocks of its own or of its lender."""

    def build(running, name, num_blocks, lender=None):
        seq = make_sequence(name, len(running), arrival_s=len(running), prompt=31, new=200)
        running.admit(seq, 2)
        seq.emit(1, now=0.0)
        running.start_decoding(seq)
        running.resume(seq, num_blocks, lender)
        return seq

    return build


def lending(num_blocks):
    return Running(BlockLedger(num_blocks, 16), pause_when_full=True, queue_responses=True)


def test_blocks_lent_on_come_back_from_the_last_borrower(decode):
    running = lending(20)
    lender = decode(running, "lender", 10)
    borrower = decode(running, "borrower", 5, lender)
    nested = decode(running, "nested", 2, borrower)
    held = running.blocks.held_by
    assert [held(name) for name in ("lender", "borrower", "nested")] == [7, 5, 4]
    running.remove(borrower, State.FINISHED)
    assert (held("lender"), nested.lender, lender.borrowers) == (10, lender, [nested])
    running.remove(nested, State.FINISHED)
    assert (held("lender"), running.blocks.free, lender.borrowers) == (12, 8, [])
    assert lender.num_slots == 12 * 16


def test_lender_that_needs_blocks_preempts_the_latest_borrower(decode):
    running = lending(16)
    lender = decode(running, "lender", 10)
    for name in ("first", "last"):
        decode(running, name, 2, lender)
    assert running.blocks.free == 0
    running.decoding.change(lender, lender.emit, 16 * 6, 1.0)  # it needs what it has lent
    assert names(running.make_room()) == ["last"]
    assert names(lender.borrowers) == ["first"]


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 6)), min_size=5, max_size=40
    )
)
def test_lender_under_any_order_of_ends_keeps_its_blocks(decode, moves):
    """Responses begin, as borrowers if a lender has enough, and end in any order."""
    running = lending(60)
    own = {}
    for place, other, num_blocks in moves:
        if seq := running.decoding.get(f"s{place}"):
            running.remove(seq, State.FINISHED)
            del own[f"s{place}"]
        elif (lender := running.decoding.get(f"s{other}")) and running.blocks.free >= 2:
            if running.blocks.held_by(lender.request_id) >= num_blocks:
                decode(running, f"s{place}", num_blocks, lender)
                own[f"s{place}"] = 2
        elif running.blocks.free >= 2 + num_blocks:
            decode(running, f"s{place}", num_blocks)
            own[f"s{place}"] = 2 + num_blocks
        running.blocks.check()
        for seq in running:
            lent = sum(borrower.num_borrowed for borrower in seq.borrowers)
            assert all(borrower.lender is seq for borrower in seq.borrowers)
            assert running.blocks.held_by(seq.request_id) + lent >= own[seq.request_id]
    for seq in tuple(running):
        running.remove(seq, State.FINISHED)
    assert running.blocks.free == running.blocks.num_blocks
