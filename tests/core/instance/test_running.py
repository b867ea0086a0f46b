"""Who gets the last blocks: growth, pauses, preemptions."""

import pytest

from macroserve.core.instance.running import Running
from macroserve.core.instance.sequence import State


def names(sequences):
    return [seq.request_id for seq in sequences]


@pytest.fixture(scope="session")
def run_up(make_sequence):
    """Decoding sequences that used up the blocks granted: ``(name, arrival, blocks)``."""

    def build(num_blocks, *wanted, pause_when_full, prefilling=()):
        running = Running(num_blocks, 16, pause_when_full=pause_when_full)
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
def test_each_gets_a_block_while_there_are_some(run_up, pause_when_full):
    running = run_up(8, ("a", 0, 2), ("b", 1, 2), pause_when_full=pause_when_full)
    assert running.make_room() == []
    assert running.blocks.free == 2
    assert [seq.num_slots for seq in running] == [48, 48]
    assert running.make_room() == [] and running.blocks.free == 2  # once is enough


def test_the_latest_arrival_gives_up_its_cache(run_up):
    running = run_up(6, ("late", 9, 2), ("a", 1, 2), ("b", 2, 2), pause_when_full=False)
    preempted = running.make_room()
    assert names(preempted) == ["late"]
    assert preempted[0].state is State.WAITING and preempted[0].num_to_prefill == 32
    assert names(running) == ["a", "b"]
    assert running.blocks.free == 0


def test_a_sequence_may_have_to_preempt_itself(run_up):
    running = run_up(4, ("a", 1, 2), ("b", 2, 2), pause_when_full=False)
    running.decoding["a"].num_slots = 99  # a has room; only b is short
    assert names(running.make_room()) == ["b"]
    assert names(running) == ["a"]


def test_begun_prompts_are_preempted_too(run_up):
    running = run_up(6, ("a", 1, 2), pause_when_full=False, prefilling=(("p", 5, 4),))
    assert names(running.make_room()) == ["p"]


def test_whoever_finds_no_block_pauses_and_goes_on_later(run_up):
    running = run_up(5, ("a", 1, 2), ("b", 2, 2), pause_when_full=True)
    assert running.make_room() == []
    assert names(running.decoding.values()) == ["a"]
    assert names(running.paused.values()) == ["b"]
    assert running.blocks.held_by("b") == 2, "a paused sequence keeps its cache"
    running.remove(running.decoding["a"], State.FINISHED)
    assert running.make_room() == []
    assert names(running.decoding.values()) == ["b"] and not running.paused
    assert running.decoding["b"].num_slots == 48


def test_the_paused_come_before_those_that_run(run_up):
    running = run_up(6, ("a", 1, 2), ("b", 2, 2), pause_when_full=True, prefilling=(("p", 5, 1),))
    running.make_room()
    assert names(running.paused.values()) == ["b"]
    running.decoding.emit_one(running.decoding["a"], 16, 1.0)  # short again
    running.remove(running.prefilling["p"], State.FINISHED)
    running.make_room()
    assert names(running.paused.values()) == ["a"]
    assert names(running.decoding.values()) == ["b"]


def test_when_all_are_paused_the_latest_is_preempted(run_up):
    running = run_up(4, ("a", 2, 2), ("b", 1, 2), pause_when_full=True)
    assert names(running.make_room()) == ["a"]
    assert names(running.decoding.values()) == ["b"]


def test_nobody_is_preempted_while_a_prompt_can_go_on(run_up):
    running = run_up(6, ("a", 1, 2), pause_when_full=True, prefilling=(("p", 5, 4),))
    assert running.make_room() == []
    assert names(running.paused.values()) == ["a"]
    assert names(running) == ["p", "a"]


def test_blocks_come_back_from_every_state(run_up):
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
