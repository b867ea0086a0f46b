"""Memory that is allocated but not used yet, lent for as long: EconoServe's KV pipelining.

A response of known length gets its whole KV at once, and fills it at one slot a step. Until it gets
to the middle of what is free, another one may fill the second half, if it is short enough to end
before (section 3.2). Guests lend in the same way, so that the slots of one reservation serve a tree
of responses. All sizes are in tokens, and reservations begin at whole blocks.
"""

from collections.abc import Iterator


class Reservation:
    """The slots of one response, and the guests in those that it has not reached.

    start: its first slot, counted from the first of the outermost host. length: how many it has.
    used: how many it has filled. host: whose slots they are, None for the outermost.
    """

    __slots__ = ("guests", "host", "length", "owner", "start", "used")

    def __init__(
        self, owner: str, length: int, start: int = 0, host: "Reservation | None" = None
    ) -> None:
        if length < 1:
            raise ValueError(f"a reservation has a slot at least, got {length}")
        self.owner = owner
        self.start = start
        self.length = length
        self.used = 0
        self.host = host
        self.guests: list[Reservation] = []
        """The nearest to what is used comes last."""

    def __iter__(self) -> Iterator["Reservation"]:
        """It and all that live in it."""
        yield self
        for guest in self.guests:
            yield from guest

    @property
    def limit(self) -> int:
        """How many slots it may fill before it gets to a guest's, or to the end."""
        return self.guests[-1].start - self.start if self.guests else self.length

    def room(self, buffer: int, block_size: int) -> int:
        """The longest response that it could take in now as a direct guest; 0 for none.

        buffer: steps by which a guest has to end early, for lengths are predictions.
        """
        offset = self._middle(block_size)
        return max(0, min(self.limit - offset, offset - self.used - buffer))

    def take_in(self, owner: str, length: int, buffer: int, block_size: int) -> "Reservation":
        """Lend the second half of what is free to a response that begins now.

        Raises ValueError if ``room`` is less than its length.
        """
        if length > self.room(buffer, block_size):
            raise ValueError(f"{self.owner} has no room for {length} tokens of {owner}")
        guest = Reservation(owner, length, self.start + self._middle(block_size), self)
        self.guests.append(guest)
        return guest

    def advance(self) -> list["Reservation"]:
        """Fill one more slot; the guests that were late and have to leave it first.

        What is late has its guests evicted with it. Raises ValueError beyond the last slot.
        """
        if self.used == self.length:
            raise ValueError(f"{self.owner} has filled all of its {self.length} slots")
        evicted: list[Reservation] = []
        while self.guests and self.used >= self.limit:
            late = self.guests.pop()
            late.host = None
            evicted.extend(late)
        self.used += 1
        return evicted

    def leave(self) -> None:
        """It has ended. Its guests stay where they are, in what is its host's again."""
        host = self.host
        assert host is not None, "the outermost reservation is given back, not left"
        host.guests.remove(self)
        for guest in self.guests:
            guest.host = host
        host.guests = sorted([*host.guests, *self.guests], key=lambda guest: -guest.start)
        self.host, self.guests = None, []

    def _middle(self, block_size: int) -> int:
        """Of what is free, from its own first slot on, at the next whole block."""
        middle = self.start + self.used + (self.limit - self.used + 1) // 2
        return -(-middle // block_size) * block_size - self.start


def roomiest(root: Reservation, length: int, buffer: int, block_size: int) -> Reservation | None:
    """In whose slots a response of that length should live: the one whose room exceeds it least."""
    best: Reservation | None = None
    best_room = 0
    for candidate in root:
        room = candidate.room(buffer, block_size)
        if room >= length and (best is None or room < best_room):
            best, best_room = candidate, room
    return best
