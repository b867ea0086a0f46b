"""Record of the prompt prefixes that instances of a cell, or cells of an ingress, have cached.

A prefix cache evicts the least recently used blocks first, those of one prompt from the end. The
record does the same with the prompts routed to each instance or cell, its *holder*, and is
corrected by the hits that the holder reports.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from macroserve.core.routing.constraints import Demand, first_token_s
from macroserve.core.status import InstanceView

STEP_TOKENS = 64
BOUNDARIES_PER_STEP = 8
NUM_STEPS = 8
BOUNDARIES = tuple(
    accumulate(STEP_TOKENS << step for step in range(NUM_STEPS) for _ in range(BOUNDARIES_PER_STEP))
)
"""Lengths of the prefixes that have keys, tokens: first every 64 tokens, then at growing distances,
so that 64 keys reach 130,560 tokens."""

TRUST_TOKENS = 4096
"""Tokens of an assumed history without misses, with which the trust in a record begins."""
MEMORY_TOKENS = 1 << 20
"""Tokens after which the weight of the history is halved."""

REPLICA_COST = 2.0
"""Cost of copying a prefix to another holder, per time of its prefill: the prefill itself, and in a
full pool that of the evicted tokens. All requests that wait there wait for the copy."""

PrefixKeys = Sequence[int]
"""Keys of a prompt's prefixes that end at a boundary, shortest first. Equal keys stand for equal
tokens under the same salt and adapter."""


class HeldKey(NamedTuple):
    """The last step of a cached prefix: the tokens between its boundary and the one before."""

    key: int
    num_tokens: int
    """STEP_TOKENS times a power of two."""


def num_keys(num_tokens: int) -> int:
    """Return the number of keys of a prompt, whose last token is never taken from the cache."""
    return bisect_left(BOUNDARIES, num_tokens)


class _Share:
    """A share of recent prompt tokens."""

    __slots__ = ("_num_of", "_num_tokens")

    def __init__(self) -> None:
        self._num_of = self._num_tokens = float(TRUST_TOKENS)

    def add(self, num_of: int, num_tokens: int) -> None:
        self._num_of += num_of
        self._num_tokens += num_tokens
        if self._num_tokens > MEMORY_TOKENS:
            self._num_of /= 2
            self._num_tokens /= 2

    @property
    def value(self) -> float:
        return self._num_of / self._num_tokens


class _HolderRecord:
    """The record of one holder.

    index: place of the holder's bit in ``holders``.
    holders: bit set of the holders of a prefix, by its key.
    """

    __slots__ = (
        "_counts",
        "_held",
        "_holders",
        "_num_tokens",
        "_predicted",
        "_seen",
        "bit",
        "index",
        "name",
        "trust",
    )

    def __init__(self, name: str, index: int, holders: dict[int, int]) -> None:
        self.name = name
        self.index = index
        self.bit = 1 << index
        self.trust = 1.0
        """Share of the recorded tokens expected to be cached, 0 to 1: reported over predicted hits,
        both as shares of prompt tokens, since requests under way have been predicted only."""
        self._holders = holders
        self._held: OrderedDict[int, int] = OrderedDict()
        """``HeldKey.num_tokens`` by key, least recently used first."""
        self._num_tokens = 0
        self._predicted = _Share()
        """Predicted hits in the prompts that the holder got."""
        self._seen = _Share()
        """Hits in the prompts that it began."""
        self._counts: tuple[int, int] | None = None

    @property
    def held(self) -> list[HeldKey]:
        return [HeldKey(key, num_tokens) for key, num_tokens in self._held.items()]

    def hold(self, key: int, num_tokens: int) -> None:
        """Add a prefix, or mark it as most recently used."""
        if key not in self._held:
            self._held[key] = num_tokens
            self._num_tokens += num_tokens
            self._holders[key] = self._holders.get(key, 0) | self.bit
        self._held.move_to_end(key)

    def lose(self, key: int) -> None:
        if key in self._held:
            self._drop(key, self._held.pop(key))

    def note(self, keys: PrefixKeys, num_tokens: int, capacity: int) -> None:
        """Note that the holder gets a prompt; see ``PrefixRecord.note``."""
        held = self._held
        num_held = bisect_left(keys, True, key=lambda key: key not in held)
        self._predicted.add(BOUNDARIES[num_held - 1] if num_held else 0, num_tokens)
        self._update_trust()
        for index in range(len(keys) - 1, -1, -1):
            self.hold(keys[index], STEP_TOKENS << index // BOUNDARIES_PER_STEP)
        while self._num_tokens > capacity and held:
            self._lose_oldest()

    def observe(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Update the trust by the hits since the last call; see ``PrefixRecord.observe``."""
        if self._counts:
            num_tokens = prompt_tokens - self._counts[0]
            num_cached = cached_tokens - self._counts[1]
            if num_tokens > 0 and num_cached >= 0:
                self._seen.add(num_cached, num_tokens)
                self._update_trust()
        self._counts = prompt_tokens, cached_tokens

    def clear(self) -> int:
        """Remove all prefixes; return the tokens that the holder was expected to have."""
        num_tokens = int(self.trust * self._num_tokens)
        while self._held:
            self._lose_oldest()
        return num_tokens

    def _update_trust(self) -> None:
        seen, predicted = self._seen.value, self._predicted.value
        # If no prompt ever repeats, both shares approach 0.
        self.trust = seen / predicted if seen < predicted else 1.0

    def _lose_oldest(self) -> None:
        self._drop(*self._held.popitem(last=False))

    def _drop(self, key: int, num_tokens: int) -> None:
        self._num_tokens -= num_tokens
        if left := self._holders[key] & ~self.bit:
            self._holders[key] = left
        else:
            del self._holders[key]


class PrefixRecord:
    """Cached prefixes of all holders: the instances of a cell, or the cells of an ingress.

    A holder of a prefix also holds all shorter ones: they are used with it and evicted after it.
    """

    def __init__(self) -> None:
        self._records: dict[str, _HolderRecord] = {}
        self._by_index: list[_HolderRecord] = []
        self._free: list[int] = []
        """Indices of holders that have left."""
        self._holders: dict[int, int] = {}

    def note(self, holder: str, keys: PrefixKeys, num_tokens: int, capacity: int) -> None:
        """Note that a holder with KV caches of ``capacity`` tokens gets a prompt of
        ``num_tokens``."""
        self._record(holder).note(keys, num_tokens, capacity)

    def observe(self, holder: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Update a holder's trust by its counters so far; counters that fell were reset.

        prompt_tokens: prompt tokens of the requests that it has begun.
        cached_tokens: those found in prefix caches.
        """
        if record := self._records.get(holder):
            record.observe(prompt_tokens, cached_tokens)

    def held(self, holder: str) -> Sequence[HeldKey]:
        """Return the keys of a holder, least recently used first."""
        record = self._records.get(holder)
        return record.held if record else ()

    def take_over(self, holder: str, held: Sequence[HeldKey]) -> None:
        """Add the keys of a holder from another record. Its trust starts anew, as it depends on
        this record's predictions."""
        record = self._record(holder)
        for key, num_tokens in held:
            record.hold(key, num_tokens)

    def give_away(self, holder: str, held: Sequence[HeldKey]) -> None:
        """Remove keys that moved to another holder, possibly of another record."""
        if record := self._records.get(holder):
            for key, _ in held:
                record.lose(key)

    def forget(self, holder: str) -> int:
        """Forget a holder, whose successor of the same name starts with an empty cache; return the
        tokens that it was expected to have."""
        record = self._records.pop(holder, None)
        if record is None:
            return 0
        self._free.append(record.index)
        return record.clear()

    def expected(self, keys: PrefixKeys) -> Mapping[str, int]:
        """Return the tokens of a prompt expected at each holder that has any, by name."""
        expected: dict[str, int] = {}
        known = 0
        for index in range(len(keys) - 1, -1, -1):
            news = self._holders.get(keys[index], 0) & ~known
            known |= news
            while news:
                record = self._by_index[news.bit_length() - 1]
                news ^= record.bit
                if num_tokens := int(record.trust * BOUNDARIES[index]):
                    expected[record.name] = num_tokens
        return expected

    def _record(self, holder: str) -> _HolderRecord:
        record = self._records.get(holder)
        if record is None:
            index = self._free.pop() if self._free else len(self._by_index)
            record = _HolderRecord(holder, index, self._holders)
            self._by_index[index : index + 1] = [record]
            self._records[holder] = record
        return record


def copy_s(num_tokens: int, s_per_token: float, num_waiting: float) -> float:
    """Return the extra wait at a holder of a prefix, seconds, that a copy elsewhere would cost.

    num_tokens: tokens of the prompt that only the holder has.
    s_per_token: time to prefill one of them, seconds.
    num_waiting: requests elsewhere that would also wait for the copy.
    """
    return REPLICA_COST * num_tokens * s_per_token * (1 + num_waiting)


def latest_s(chosen_s: float, left_s: float) -> float:
    """Return the latest acceptable first token elsewhere, seconds: in time, unless the chosen place
    is late itself.

    chosen_s: time to the first token at the chosen place, seconds.
    left_s: time left of the TTFT target, seconds.
    """
    return left_s if chosen_s <= left_s else inf


def with_prefix(
    chosen: InstanceView, candidates: Sequence[InstanceView], demand: Demand
) -> InstanceView:
    """Return the instance with most of the prompt cached, among those in the chosen one's pool
    where the extra wait costs no more than a copy (``copy_s``) and the first token is in time, or
    late at the chosen one as well.

    A prefix common to all prompts thus spreads over idle instances, a long one stays where it is
    while deadlines allow, and a busy cell spends no time on copies.
    """
    had = demand.cached.get(chosen.name, 0)
    if had == max(demand.cached.values(), default=0):
        return chosen
    chosen_s = first_token_s(chosen, demand)
    bound_s = latest_s(chosen_s, demand.ttft_left_s)
    better = [
        view
        for view in candidates
        if view.pool is chosen.pool
        and (num_more := demand.cached.get(view.name, 0) - had) > 0
        and (view_s := first_token_s(view, demand)) <= bound_s
        and view_s - chosen_s
        <= copy_s(num_more, view.status.prefill_s_per_token, chosen.num_waiting)
    ]
    return max(
        better, key=lambda view: (demand.cached[view.name], -view.num_outstanding), default=chosen
    )
