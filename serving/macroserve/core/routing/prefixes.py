"""A cell remembers which beginnings of prompts its instances have computed, and an ingress which
ones its cells have.

A prefix cache holds them until their blocks are needed: the least recently used first, and of one
prompt the last first. The record does the same by what was routed to the instance or cell, its
*holder*, and is corrected by the hits that the holder reports.
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
"""Numbers of tokens at which a prompt's beginnings end that have keys: at first every 64 tokens,
then wider, so that 64 keys reach 130,560 tokens."""

TRUST_TOKENS = 4096
"""Tokens of a past in which all was found, with which the trust in a record begins."""
MEMORY_TOKENS = 1 << 20
"""Tokens after which the past counts half."""

REPLICA_COST = 2.0
"""A copy of a beginning at another holder costs this multiple of its prefill: the prefill, and in
a full pool that of what has to go for it. All that wait there wait for the copy, too."""

PrefixKeys = Sequence[int]
"""A prompt has a key for each of its beginnings that end at a boundary, shortest first. Equal keys
stand for equal tokens under an equal salt and adapter."""


class HeldKey(NamedTuple):
    """A holder has the tokens between a key's boundary and the one before."""

    key: int
    num_tokens: int
    """Number of those tokens, STEP_TOKENS times a power of two."""


def num_keys(num_tokens: int) -> int:
    """Return the number of keys of a prompt: an engine computes its last token in any case."""
    return bisect_left(BOUNDARIES, num_tokens)


class _Share:
    """The share is that of recent prompt tokens."""

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
    holders: bits of those that hold a beginning, by its key.
    trust: share of what it should hold that it is expected to find, 0 to 1: the share of its
        prompts that it has found, as a part of what it should have found. Shares, because what is
        under way should be found and has not been yet.
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
        self._holders = holders
        self._held: OrderedDict[int, int] = OrderedDict()
        """Tokens between a key's boundary and the one before, by key, least recently used first."""
        self._num_tokens = 0
        self._predicted = _Share()
        """Share that was predicted of the prompts that the holder got."""
        self._seen = _Share()
        """Share that was found of the prompts that it began."""
        self._counts: tuple[int, int] | None = None

    @property
    def held(self) -> list[HeldKey]:
        return [HeldKey(key, num_tokens) for key, num_tokens in self._held.items()]

    def hold(self, key: int, num_tokens: int) -> None:
        """Hold a beginning, as the one that was used last."""
        if key not in self._held:
            self._held[key] = num_tokens
            self._num_tokens += num_tokens
            self._holders[key] = self._holders.get(key, 0) | self.bit
        self._held.move_to_end(key)

    def lose(self, key: int) -> None:
        """Lose a beginning, if the holder has it."""
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
        """Take in what the holder has found since it was observed before; see
        ``PrefixRecord.observe``."""
        if self._counts:
            num_tokens = prompt_tokens - self._counts[0]
            num_cached = cached_tokens - self._counts[1]
            if num_tokens > 0 and num_cached >= 0:
                self._seen.add(num_cached, num_tokens)
                self._update_trust()
        self._counts = prompt_tokens, cached_tokens

    def clear(self) -> int:
        """Hold nothing any more; return the tokens that the holder was expected to have."""
        num_tokens = int(self.trust * self._num_tokens)
        while self._held:
            self._lose_oldest()
        return num_tokens

    def _update_trust(self) -> None:
        seen, predicted = self._seen.value, self._predicted.value
        # Of prompts that never repeat, nothing is predicted in the end.
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
    """The record tells how much of a prompt each holder has in its prefix caches: each instance of
    a cell, or each cell.

    A holder of a beginning holds all shorter ones of it: these were used with it, and are lost
    after it.
    """

    def __init__(self) -> None:
        self._records: dict[str, _HolderRecord] = {}
        self._by_index: list[_HolderRecord] = []
        self._free: list[int] = []
        """Indices of holders that have left."""
        self._holders: dict[int, int] = {}

    def note(self, holder: str, keys: PrefixKeys, num_tokens: int, capacity: int) -> None:
        """Note that a holder gets a prompt.

        num_tokens: tokens of the prompt.
        capacity: tokens that the holder's pools hold.
        """
        self._record(holder).note(keys, num_tokens, capacity)

    def observe(self, holder: str, prompt_tokens: int, cached_tokens: int) -> None:
        """Take in a holder's newest counts; those that have fallen began anew.

        prompt_tokens: prompt tokens of the requests that it has begun so far.
        cached_tokens: those of them that prefix caches had.
        """
        if record := self._records.get(holder):
            record.observe(prompt_tokens, cached_tokens)

    def held(self, holder: str) -> Sequence[HeldKey]:
        """Return what a holder has, least recently used first."""
        record = self._records.get(holder)
        return record.held if record else ()

    def take_over(self, holder: str, held: Sequence[HeldKey]) -> None:
        """Note that a holder comes with what another record had of it. The trust in it begins anew:
        it follows what this record predicts."""
        record = self._record(holder)
        for key, num_tokens in held:
            record.hold(key, num_tokens)

    def give_away(self, holder: str, held: Sequence[HeldKey]) -> None:
        """Note that a holder has lost these beginnings to another one, which may be another
        record's."""
        if record := self._records.get(holder):
            for key, _ in held:
                record.lose(key)

    def forget(self, holder: str) -> int:
        """Note that a holder has left: the next one of its name has an empty cache. Return the
        tokens that it was expected to have."""
        record = self._records.pop(holder, None)
        if record is None:
            return 0
        self._free.append(record.index)
        return record.clear()

    def expected(self, keys: PrefixKeys) -> Mapping[str, int]:
        """Return the tokens of a prompt that each holder is expected to have, by name; without
        those that have none."""
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
    """Return for how long a request may wait at a holder beyond another one, seconds, rather than
    have its beginning copied there.

    num_tokens: tokens of its prompt that only the first holder has.
    s_per_token: time to prefill one of them, seconds.
    num_waiting: requests at the other holder that wait for the copy, too.
    """
    return REPLICA_COST * num_tokens * s_per_token * (1 + num_waiting)


def latest_s(chosen_s: float, left_s: float) -> float:
    """Return the time to the first token, seconds, beyond which a place is passed over for the
    chosen one: where that is late itself, nothing is.

    chosen_s: time to the first token at the chosen one, seconds.
    left_s: time left of the TTFT target, seconds.
    """
    return left_s if chosen_s <= left_s else inf


def with_prefix(
    chosen: InstanceView, candidates: Sequence[InstanceView], demand: Demand
) -> InstanceView:
    """Return the instance of the chosen one's pool that has most of the prompt, of those that are
    waited for no longer beyond the chosen one than a copy there costs (``copy_s``). One that would
    be late is passed over, unless the chosen one would be late, too. The chosen one if it has most
    itself.

    So a beginning that all prompts share is soon everywhere while instances idle, a long one keeps
    its instance while deadlines allow, and a busy cell loses no time by copies.
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
