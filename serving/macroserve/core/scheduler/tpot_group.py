"""A TPOT group keeps decoding sequences of one target in order of their slack."""

from bisect import bisect_left, bisect_right

from macroserve.core.scheduler.decode_entry import DecodeEntry


class TpotGroup:
    """The group holds sequences of one TPOT target in order of their slack, which no common step
    changes.

    Attributes:
        keys: pace key of each entry, seconds.
        total: sum of the keys, seconds.
    """

    __slots__ = ("entries", "keys", "total")

    def __init__(self) -> None:
        self.keys: list[float] = []
        self.entries: list[DecodeEntry] = []
        self.total = 0.0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, entry: DecodeEntry) -> None:
        index = bisect_right(self.keys, entry.pace_key)
        self.keys.insert(index, entry.pace_key)
        self.entries.insert(index, entry)
        self.total += entry.pace_key

    def remove(self, entry: DecodeEntry) -> None:
        index = self.entries.index(entry, bisect_left(self.keys, entry.pace_key))
        del self.keys[index], self.entries[index]
        self.total -= entry.pace_key
