"""KV pipelining against a map of who writes where: no slot ever has two owners."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macroserve.core.instance.lending import Reservation, roomiest


def rooms(reservation: Reservation, buffer: int = 0, block_size: int = 1) -> int:
    return reservation.room(buffer, block_size)


def test_the_papers_example() -> None:
    """32 tokens host 16, those and the first half host 8 each, and so on (figure 7)."""
    root = Reservation("r1", 32)
    assert rooms(root) == 16
    second = root.take_in("r2", 16, 0, 1)
    assert (second.start, rooms(second), rooms(root)) == (16, 8, 8)
    third, fourth = root.take_in("r3", 8, 0, 1), second.take_in("r4", 8, 0, 1)
    assert (third.start, fourth.start) == (8, 24)
    assert [rooms(each) for each in (root, second, third, fourth)] == [4, 4, 4, 4]


def test_a_guest_has_to_end_early_by_the_buffer() -> None:
    assert rooms(Reservation("host", 100), buffer=10) == 40
    assert rooms(Reservation("host", 20), buffer=10) == 0


def test_guests_begin_at_whole_blocks() -> None:
    host = Reservation("host", 100)
    assert rooms(host, block_size=16) == 100 - 64
    assert host.take_in("guest", 36, 0, 16).start == 64


def test_the_tightest_room_is_taken() -> None:
    root = Reservation("root", 64)
    guest = root.take_in("guest", 24, 0, 1)
    assert (rooms(root), rooms(guest)) == (16, 12)
    assert roomiest(root, 12, 0, 1) is guest
    assert roomiest(root, 13, 0, 1) is root
    assert roomiest(root, 17, 0, 1) is None


def test_a_late_guest_leaves_with_its_own_guests() -> None:
    root = Reservation("root", 16)
    guest = root.take_in("guest", 8, 0, 1)
    inner = guest.take_in("inner", 4, 0, 1)
    for _ in range(8):
        assert root.advance() == []
    assert root.advance() == [guest, inner]
    assert list(root) == [root]


def test_guests_of_one_that_ended_stay() -> None:
    root = Reservation("root", 32)
    guest = root.take_in("guest", 16, 0, 1)
    inner = guest.take_in("inner", 8, 0, 1)
    guest.leave()
    assert list(root) == [root, inner]
    assert (inner.host, root.limit) == (root, 24)


@pytest.mark.parametrize("length", [0, -1])
def test_no_reservation_is_empty(length: int) -> None:
    with pytest.raises(ValueError, match="a slot at least"):
        Reservation("r", length)


def test_what_does_not_fit_is_refused() -> None:
    root = Reservation("root", 10)
    with pytest.raises(ValueError, match="no room for 6"):
        root.take_in("guest", 6, 0, 1)
    for _ in range(10):
        root.advance()
    with pytest.raises(ValueError, match="all of its 10"):
        root.advance()


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(1, 300),
    buffer=st.integers(0, 20),
    block_size=st.sampled_from((1, 4, 16)),
    seed=st.integers(0, 2**32),
    lateness=st.floats(0, 0.5),
)
def test_no_slot_ever_has_two_owners(
    length: int, buffer: int, block_size: int, seed: int, lateness: float
) -> None:
    """Responses of random lengths come as long as there is room; some outrun their prediction, and
    stop where their reservation ends."""
    random = Random(seed)
    root = Reservation("0", length)
    real = {"0": length}
    count = 0
    while root.used < root.length:
        for _ in range(random.randint(0, 3)):
            predicted = random.randint(1, length)
            host = roomiest(root, predicted, buffer, block_size)
            if host is not None:
                count += 1
                host.take_in(str(count), predicted, buffer, block_size)
                late = random.random() < lateness
                real[str(count)] = predicted + 1 if late else random.randint(1, predicted)
        for each in list(root):
            if each is not root and each.host is None:
                continue  # evicted in this very step
            if each.used < each.length:
                each.advance()
            if each is not root and each.used >= real[each.owner]:
                each.leave()
        written = [slot for each in root for slot in range(each.start, each.start + each.used)]
        assert len(written) == len(set(written)), "two responses in one slot"
        assert all(0 <= slot < length for slot in written)
    assert all(guest.used < real[guest.owner] for guest in root if guest is not root)
