"""Responses of one length form a group, which is split where it does not fit."""

from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.response_group import ResponseGroup

queues = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=12)


@given(queues)
def test_groups_hold_each_response_once_by_length_in_order(queue):
    queue = [(index, *each) for index, each in enumerate(queue)]
    groups = ResponseGroup.of(queue, lambda seq: seq[1], lambda seq: seq[2])
    assert sorted(seq for group in groups for seq in group.members) == queue
    for group in groups:
        assert len({seq[1] for seq in group.members}) == 1
        assert list(group.members) == sorted(group.members)
        assert group.num_blocks == tuple(seq[2] for seq in group.members)
    assert len({group.members[0][1] for group in groups}) == len(groups)
    assert [group.members[0] for group in groups] == sorted(group.members[0] for group in groups)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(-2, 30))
def test_group_is_split_to_fit_the_free_blocks(num_blocks, num_free):
    group = ResponseGroup(tuple(range(len(num_blocks))), tuple(num_blocks))
    first, rest = group.split(num_free)
    assert first.members + rest.members == group.members
    assert first.num_blocks + rest.num_blocks == group.num_blocks
    assert not first.members or sum(first.num_blocks) <= num_free
    if rest.members:
        assert sum(first.num_blocks) + rest.num_blocks[0] > num_free
