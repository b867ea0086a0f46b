"""A cell remembers which beginnings of prompts its instances have computed.

An instance's prefix cache holds them until their blocks are needed: the least recently used first,
and of one prompt the last first. The record does the same by what was routed to the instance, and
is corrected by the hits that the instance reports.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from macroserve.core.routing.constraints import Demand, first_token_s
from macroserve.core.status import InstanceStatus, InstanceView

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
"""A copy of a beginning at another instance costs this multiple of its prefill: the prefill, and in
a full pool that of what has to go for it."""

PrefixKeys = Sequence[int]
"""A prompt has a key for each of its beginnings that end at a boundary, shortest first. Equal keys
stand for equal tokens under an equal salt and adapter."""


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


class _InstanceRecord:
    """The record of one instance.

    bit: the instance's own in ``holders``.
    holders: bits of the instances that hold a beginning, by its key.
    trust: share of what it should hold that it is expected to find, 0 to 1: the share of its
        prompts that it has found, as a part of what it should have found. Shares, because what is
        under way should be found and has not been yet.
    """

    __slots__ = (
        "_bit",
        "_held",
        "_holders",
        "_num_tokens",
        "_predicted",
        "_seen",
        "_status",
        "name",
        "trust",
    )

    def __init__(self, name: str, bit: int, holders: dict[int, int]) -> None:
        self.name = name
        self.trust = 1.0
        self._bit = bit
        self._holders = holders
        self._held: OrderedDict[int, int] = OrderedDict()
        """Tokens between a key's boundary and the one before, by key, least recently used first."""
        self._num_tokens = 0
        self._predicted = _Share()
        """Share that was predicted of the prompts that the instance got."""
        self._seen = _Share()
        """Share that was found of the prompts that it began."""
        self._status: InstanceStatus | None = None

    def note(self, keys: PrefixKeys, num_tokens: int, capacity: int) -> None:
        """Note that the instance gets a prompt; see ``PrefixRecord.note``."""
        held = self._held
        num_held = bisect_left(keys, True, key=lambda key: key not in held)
        self._predicted.add(BOUNDARIES[num_held - 1] if num_held else 0, num_tokens)
        self._update_trust()
        for index in range(len(keys) - 1, -1, -1):
            key = keys[index]
            if key not in held:
                held[key] = BOUNDARIES[index] - (BOUNDARIES[index - 1] if index else 0)
                self._num_tokens += held[key]
                self._holders[key] = self._holders.get(key, 0) | self._bit
            held.move_to_end(key)
        while self._num_tokens > capacity and held:
            self._lose_oldest()

    def observe(self, status: InstanceStatus) -> None:
        """Take in what the instance has found since its status before."""
        if before := self._status:
            num_cached = status.cached_tokens - before.cached_tokens
            self._seen.add(num_cached, status.prompt_tokens - before.prompt_tokens)
            self._update_trust()
        self._status = status

    def clear(self) -> int:
        """Hold nothing any more; return the bit, which is free then."""
        while self._held:
            self._lose_oldest()
        return self._bit

    def _update_trust(self) -> None:
        seen, predicted = self._seen.value, self._predicted.value
        # Of prompts that never repeat, nothing is predicted in the end.
        self.trust = seen / predicted if seen < predicted else 1.0

    def _lose_oldest(self) -> None:
        key, num_tokens = self._held.popitem(last=False)
        self._num_tokens -= num_tokens
        if left := self._holders[key] & ~self._bit:
            self._holders[key] = left
        else:
            del self._holders[key]


class PrefixRecord:
    """The record tells how much of a prompt each instance of a cell has in its prefix cache.

    An instance that holds a beginning holds all shorter ones of it: these were used with it, and
    are lost after it.
    """

    def __init__(self) -> None:
        self._records: dict[str, _InstanceRecord] = {}
        self._by_bit: dict[int, _InstanceRecord] = {}
        self._free_bits: list[int] = []
        self._holders: dict[int, int] = {}

    def note(self, instance: str, keys: PrefixKeys, num_tokens: int, capacity: int) -> None:
        """Note that an instance gets a prompt.

        num_tokens: tokens of the prompt.
        capacity: tokens that the instance's pool holds.
        """
        record = self._records.get(instance)
        if record is None:
            bit = self._free_bits.pop() if self._free_bits else 1 << len(self._records)
            record = _InstanceRecord(instance, bit, self._holders)
            self._records[instance] = self._by_bit[bit] = record
        record.note(keys, num_tokens, capacity)

    def observe(self, instance: str, status: InstanceStatus) -> None:
        """Take in an instance's newest status."""
        if record := self._records.get(instance):
            record.observe(status)

    def forget(self, instance: str) -> None:
        """Note that an instance has left: the next one of its name has an empty cache."""
        if record := self._records.pop(instance, None):
            bit = record.clear()
            del self._by_bit[bit]
            self._free_bits.append(bit)

    def expected(self, keys: PrefixKeys) -> Mapping[str, int]:
        """Return the tokens of a prompt that each instance is expected to have, by name; without
        those that have none."""
        expected: dict[str, int] = {}
        known = 0
        for index in range(len(keys) - 1, -1, -1):
            news = self._holders.get(keys[index], 0) & ~known
            known |= news
            while news:
                bit = news & -news
                news ^= bit
                record = self._by_bit[bit]
                if num_tokens := int(record.trust * BOUNDARIES[index]):
                    expected[record.name] = num_tokens
        return expected


def with_prefix(
    chosen: InstanceView, candidates: Sequence[InstanceView], demand: Demand
) -> InstanceView:
    """Return the instance of the chosen one's pool that has most of the prompt, of those where the
    first token is in time or no later, and where it is not waited for longer than the rest of the
    beginning is worth at the chosen one. The chosen one if it has most itself.

    So a long beginning keeps its instance while deadlines allow, and a short one that all prompts
    share is soon everywhere.
    """
    chosen_s, had = first_token_s(chosen, demand), demand.cached.get(chosen.name, 0)
    latest_s = max(chosen_s, demand.ttft_left_s)
    better = [
        view
        for view in candidates
        if view.pool is chosen.pool
        and (num_more := demand.cached.get(view.name, 0) - had) > 0
        and (view_s := first_token_s(view, demand)) <= latest_s
        and view_s - chosen_s <= REPLICA_COST * num_more * view.status.prefill_s_per_token
    ]
    return max(
        better, key=lambda view: (demand.cached[view.name], -view.num_outstanding), default=chosen
    )
