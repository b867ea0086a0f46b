"""A response group is what EconoServe admits at once: responses expected to end together.

Its members start in the same step, decode side by side without a decision in between
(``standing``), and run out of the memory for their expected length together (section 3.3.2).
A member that ends early leaves. One that goes on takes blocks of the reserve; if there are none it
pauses, and joins the group of the length that it has left.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from macroserve.core.scheduler.sequence import Sequence


class ResponseGroup(NamedTuple):
    """The group holds queued responses of one expected length."""

    members: tuple[Sequence, ...]
    """The responses, most urgent first."""
    num_blocks: tuple[int, ...]
    """Blocks that each needs beyond its own."""

    @staticmethod
    def of(
        queue: Iterable[Sequence],
        length: Callable[[Sequence], int],
        needed: Callable[[Sequence], int],
    ) -> list["ResponseGroup"]:
        """Return the groups of a queue, in the order of their first members.

        length: gives what the members of a group have in common.
        needed: gives the blocks that a response needs beyond its own.
        """
        found: dict[int, list[Sequence]] = {}
        for seq in queue:
            found.setdefault(length(seq), []).append(seq)
        return [ResponseGroup(tuple(group), tuple(map(needed, group))) for group in found.values()]

    def split(self, num_free: int) -> tuple["ResponseGroup", "ResponseGroup"]:
        """Return the members that ``num_free`` blocks hold together, and the rest: "If the KVC's
        available space cannot accommodate an entire group, the group is split to fit" (section
        3.3.1). Either may be empty."""
        num_fit = 0
        for num_blocks in self.num_blocks:
            num_free -= num_blocks
            if num_free < 0:
                break
            num_fit += 1
        parts = slice(num_fit), slice(num_fit, None)
        first, rest = (ResponseGroup(self.members[p], self.num_blocks[p]) for p in parts)
        return first, rest
