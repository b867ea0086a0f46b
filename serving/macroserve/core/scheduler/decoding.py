"""Decoding sequences, which mostly advance together, at O(1) per step.

A step changes all sequences alike: one more token, a little more of the TPOT budget used. The
change is stored once and applied to a sequence when it is read.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from math import ceil, inf

from macroserve.core.latency import LatencyModel, Work
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.in_flight import Speculation
from macroserve.core.scheduler.sequence import Sequence


class _Entry:
    __slots__ = ("as_of_slow", "as_of_step", "due_step", "pace_key", "place", "seq")

    def __init__(self, seq: Sequence, place: int) -> None:
        self.seq = seq
        self.place = place
        """Place in the order of entry."""
        self.as_of_step = 0
        """Common steps applied to the sequence."""
        self.as_of_slow = 0
        """Slow ones among them, by the sequence's own target."""
        self.due_step = 0
        """Step at which the sequence runs out of slots or exceeds its expected length."""
        self.pace_key = 0.0
        """End of its TPOT budget minus its target times all common steps, seconds."""


class _TpotGroup:
    """Sequences with one TPOT target, ordered by slack, which common steps do not reorder."""

    __slots__ = ("entries", "keys", "total")

    def __init__(self) -> None:
        self.keys: list[float] = []
        """Pace key of each entry, seconds."""
        self.entries: list[_Entry] = []
        self.total = 0.0
        """Sum of the keys."""

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, entry: _Entry) -> None:
        index = bisect_right(self.keys, entry.pace_key)
        self.keys.insert(index, entry.pace_key)
        self.entries.insert(index, entry)
        self.total += entry.pace_key

    def remove(self, entry: _Entry) -> None:
        index = self.entries.index(entry, bisect_left(self.keys, entry.pace_key))
        del self.keys[index], self.entries[index]
        self.total -= entry.pace_key


class Decoding:
    """Decoding sequences by id, in order of entry; each is updated when it is read."""

    def __init__(self, num_drafts: int = 0) -> None:
        self.speculation = Speculation(num_drafts)
        self.num_tokens = 0
        """Cached tokens of all sequences together."""
        self.num_hidden_tokens = 0
        """Those cached as hidden states."""
        self.num_remaining = 0
        """Tokens still expected of all sequences."""
        self.num_added = 0
        """Sequences added so far."""
        self.last_step_s = 0.0
        """Time of the last common step, seconds."""
        self._entries: dict[str, _Entry] = {}
        self._num_hidden = 0
        self._num_steps = 0
        self._num_slow: dict[float | None, int] = {}
        self._tbts_s = Counter[float | None]()
        self._paces: dict[float, _TpotGroup] = {}
        self._fresh: dict[_Entry, None] = {}
        self._rejoined: dict[_Entry, None] = {}
        self._short: dict[_Entry, None] = {}
        self._due: defaultdict[int, list[_Entry]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def are_all(self, request_ids: Collection[str]) -> bool:
        """Return whether these are the ids of all sequences, without repetition."""
        return len(request_ids) == len(self._entries) and self._entries.keys() >= set(request_ids)

    def __getitem__(self, request_id: str) -> Sequence:
        return self._synced(self._entries[request_id])

    def get(self, request_id: str) -> Sequence | None:
        entry = self._entries.get(request_id)
        return self._synced(entry) if entry else None

    def values(self) -> Iterator[Sequence]:
        return map(self._synced, self._entries.values())

    def add(self, seq: Sequence) -> None:
        self.num_added += 1
        entry = self._entries[seq.request_id] = _Entry(seq, self.num_added)
        self._enter(entry)

    def pop(self, request_id: str) -> Sequence:
        entry = self._entries[request_id]
        self._leave(entry)
        del self._entries[request_id]
        return entry.seq

    def step_s(self, latency: LatencyModel) -> float:
        """Return the predicted time of a step of all sequences and nothing else, seconds."""
        return latency.predict(self.work(latency))

    def work(self, latency: LatencyModel) -> Work:
        num = len(self._entries)
        num_drafted = num * self.speculation.drafted
        return latency.work((), num, self.num_tokens, self.num_hidden_tokens, num_drafted)

    # -- tokens

    def emit(self, num_tokens: int, now: float, excluded: Iterable[str] = ()) -> list[Sequence]:
        """Add ``num_tokens`` tokens, the last at ``now``, to each sequence not in ``excluded``;
        return the sequences that reached their expected length."""
        separate = [self._entries[request_id] for request_id in excluded]
        for entry in separate:
            self._leave(entry)
        for entry in (*self._fresh, *self._rejoined):
            self._leave(entry)
            entry.seq.emit(num_tokens, now)
            separate.append(entry)
        before, num = self._num_steps, len(self._entries) - len(separate)
        self._num_steps += num_tokens
        for tbt_s in self._num_slow:
            self._num_slow[tbt_s] += tbt_s is not None and now - self.last_step_s > tbt_s
        self.last_step_s = now
        self.num_tokens += num * num_tokens
        self.num_hidden_tokens += self._num_hidden * num_tokens
        self.num_remaining -= num * num_tokens
        for entry in separate:
            self._enter(entry)
        changed = [entry.seq for entry in separate]
        for step in range(before + 1, self._num_steps + 1):
            for entry in self._due.pop(step, ()):
                # Since this was noted, the sequence may have left or got another due step.
                if self._entries.get(entry.seq.request_id) is entry and entry.due_step == step:
                    self._synced(entry)
                    self._look_ahead(entry)
                    changed.append(entry.seq)
        return [seq for seq in changed if seq.num_emitted >= seq.predicted_tokens]

    def change(self, seq: Sequence, how: Callable[..., None], *args: float) -> bool:
        """Change one sequence by its method ``how``; return whether it has reached its expected
        length."""
        entry = self._entries[seq.request_id]
        self._leave(entry)
        how(*args)
        self._enter(entry)
        return seq.num_emitted >= seq.predicted_tokens

    def correct_step(self, expected_s: float, actual_s: float, num_added: int) -> None:
        """Correct a common step that was counted before it ended.

        expected_s, actual_s: assumed and measured gap between two tokens, seconds.
        num_added: ``self.num_added`` at the time; sequences added later were not part of the step.
        """
        for tbt_s in self._num_slow:
            if tbt_s is None or (wrong := (actual_s > tbt_s) - (expected_s > tbt_s)) == 0:
                continue
            self._num_slow[tbt_s] += wrong
            for entry in reversed(self._entries.values()):
                if entry.place <= num_added:
                    break
                if entry.seq.request.slo.tbt_s == tbt_s:
                    entry.as_of_slow += wrong

    def expect(self, seq: Sequence, num_tokens: int) -> None:
        """Set the expected length of a response."""
        self.num_remaining += num_tokens - seq.predicted_tokens
        seq.predicted_tokens = num_tokens
        entry = self._entries[seq.request_id]
        self._synced(entry)
        self._look_ahead(entry)

    def resize(self, seq: Sequence, num_slots: int) -> None:
        """Set the number of tokens that a sequence's blocks have room for."""
        entry = self._entries[seq.request_id]
        seq.num_slots = num_slots
        self._short.pop(entry, None)
        self._synced(entry)
        self._look_ahead(entry)

    @property
    def short(self) -> list[Sequence]:
        """Return the sequences without a slot for their next token, in order."""
        return list(map(self._synced, sorted(self._short, key=lambda entry: entry.place)))

    @property
    def needs_slots(self) -> bool:
        """Return whether some sequence has no slot for its next token."""
        return bool(self._short)

    # -- slack

    @property
    def waits(self) -> tuple[list[float], list[float]]:
        """Return ``pending_since_s`` and ``patience_s`` of each sequence without updating any."""
        steps, last_s, entries = self._num_steps, self.last_step_s, self._entries.values()
        since_s = [last_s if e.as_of_step < steps else e.seq.pending_since_s for e in entries]
        return since_s, [entry.seq.patience_s for entry in entries]

    @property
    def min_tpot_s(self) -> float:
        """Return the tightest TPOT target, seconds; infinite without sequences."""
        return min(chain(self._paces, [entry.seq.tpot_s for entry in self._fresh]), default=inf)

    @property
    def has_looser(self) -> bool:
        """Return whether some sequence has a looser TPOT target than another."""
        tightest_s = self.min_tpot_s
        return any(
            tpot_s > tightest_s
            for tpot_s in chain(self._paces, [entry.seq.tpot_s for entry in self._fresh])
        )

    @property
    def min_tbt_s(self) -> float:
        """Return the tightest TBT target, seconds; infinite if no sequence has one."""
        targets_s = self._tbts_s.items()
        return min((tbt_s for tbt_s, num in targets_s if num and tbt_s is not None), default=inf)

    @property
    def min_ttft_s(self) -> float:
        """Return the tightest TTFT target, seconds; infinite without sequences."""
        targets_s = (entry.seq.request.slo.ttft_s for entry in self._entries.values())
        return min(targets_s, default=inf)

    def start_clocks(self, now: float) -> None:
        """Count the time per token from ``now`` for sequences with only their first token out."""
        for entry in self._fresh:
            entry.seq.tpot_budget_until_s = now

    def saved_tpot_mean_s(self, now: float) -> float:
        """Return the mean saved TPOT as in EcoServe's Algorithm 2, seconds; infinite without
        sequences. Those with only their first token out save nothing yet and are left out."""
        num = len(self._entries) - len(self._fresh)
        if not num:
            return inf
        steps = self._num_steps
        saved_s = sum([p.total + len(p) * tpot_s * steps for tpot_s, p in self._paces.items()])
        return saved_s / num - now

    def saved_tpot_s(self, share: float, now: float, step_s: float = -inf) -> float:
        """Return the ``share`` quantile of the saved TPOT (nearest rank), seconds; may be negative.

        The paper takes the mean, in which old requests hide young ones. Left out are requests that
        will miss their TPOT target even with decode steps of ``step_s``, where nothing can be
        saved, and those with only their first token out. Infinite if none is left.
        """
        parts: list[tuple[list[float], float, list[int]]] = []
        for tpot_s, pace in self._paces.items():
            ahead_s = tpot_s * self._num_steps - now
            behind = pace.entries[: bisect_left(pace.keys, -ahead_s)]
            lost = [
                index
                for index, entry in enumerate(behind)
                if self._is_lost(entry, pace.keys[index] + ahead_s, step_s)
            ]
            parts.append((pace.keys, ahead_s, lost))
        rank = ceil(share * sum([len(keys) - len(lost) for keys, _, lost in parts]))
        if not rank:
            return inf
        if len(parts) > 1:
            return sorted(
                key + ahead_s
                for keys, ahead_s, lost in parts
                for index, key in enumerate(keys)
                if index not in lost
            )[rank - 1]
        ((keys, ahead_s, lost),) = parts
        index = rank - 1
        for passed_over in lost:
            index += passed_over <= index
        return keys[index] + ahead_s

    def spendable_s(
        self,
        share: float,
        now: float,
        step_s: float,
        pace_s: float,
        most_s: float,
        most_tpot_s: float = inf,
    ) -> float:
        """Return the ``share`` quantile (nearest rank) of the time that decodes with TPOT targets
        up to ``most_tpot_s`` can spend, seconds.

        At most ``most_s``, and negative if they must catch up. A request can spend the time that it
        has saved and will save by the tokens that it is nearly sure to get, at ``pace_s`` each.
        Requests that will miss their target are left out as in ``saved_tpot_s``. 0 if none is left.
        """
        paces = [(tpot_s, p) for tpot_s, p in self._paces.items() if tpot_s <= most_tpot_s]
        lines = [(tpot_s * self._num_steps, p.keys, p.entries) for tpot_s, p in paces]
        fresh = [entry for entry in self._fresh if entry.seq.tpot_s <= most_tpot_s]
        num = sum([len(p) for _, p in paces]) + len(fresh)
        least = [most_s] * ceil(share * num)
        if fresh:
            fresh.sort(key=lambda entry: entry.seq.tpot_budget_until_s)
            lines.append((0.0, [entry.seq.tpot_budget_until_s for entry in fresh], fresh))
        for ahead_s, keys, entries in lines:
            for key, entry in zip(keys, entries, strict=True):
                saved_s = key + ahead_s - now
                if max(least[-1], 0.0) <= saved_s:  # no later one has less, or is lost
                    break
                if self._is_lost(entry, saved_s, step_s):
                    num -= 1
                    continue
                seq = entry.seq
                num_sure = seq.sure_tokens - seq.num_emitted - self._num_steps + entry.as_of_step
                gain_s = max(0, num_sure) * max(0.0, seq.tpot_s - pace_s)
                insort(least, saved_s + gain_s)
                least.pop()
        return least[ceil(share * num) - 1] if num else 0.0

    # -- common steps, and the state of each sequence

    def _is_lost(self, entry: _Entry, saved_s: float, step_s: float) -> bool:
        """Return whether a sequence will miss its target even if it decodes in every step."""
        seq = entry.seq
        num_behind = self._num_steps - entry.as_of_step
        num_left = max(1, seq.predicted_tokens - seq.num_emitted - num_behind)
        return saved_s < 0 and saved_s + num_left * (seq.tpot_s - step_s) < 0

    def _synced(self, entry: _Entry) -> Sequence:
        seq = entry.seq
        if num_steps := self._num_steps - entry.as_of_step:
            entry.as_of_step = self._num_steps
            num_slow = self._num_slow[seq.request.slo.tbt_s]
            seq.num_slow += num_slow - entry.as_of_slow
            entry.as_of_slow = num_slow
            seq.pending_since_s = self.last_step_s  # so that no gap is counted twice
            seq.emit(num_steps, self.last_step_s)
        return seq

    def _enter(self, entry: _Entry) -> None:
        seq = entry.seq
        entry.as_of_step = self._num_steps
        entry.as_of_slow = self._num_slow.setdefault(seq.request.slo.tbt_s, 0)
        self._tbts_s[seq.request.slo.tbt_s] += 1
        self.num_tokens += seq.num_tokens
        self.num_remaining += seq.predicted_tokens - seq.num_emitted
        if seq.cache is CacheKind.HIDDEN:
            self._num_hidden += 1
            self.num_hidden_tokens += seq.num_tokens
        if seq.num_emitted > 1:
            entry.pace_key = seq.tpot_budget_until_s - seq.tpot_s * self._num_steps
            self._paces.setdefault(seq.tpot_s, _TpotGroup()).add(entry)
            if seq.pending_since_s != self.last_step_s:
                self._rejoined[entry] = None
        else:
            self._fresh[entry] = None
        self._look_ahead(entry)

    def _look_ahead(self, entry: _Entry) -> None:
        """Record the step in which a sequence runs out of slots or exceeds its expected length."""
        seq = entry.seq
        num_slots_left = seq.num_slots - seq.num_tokens
        num_ahead = seq.predicted_tokens - seq.num_emitted
        if num_slots_left <= 0:
            self._short[entry] = None
        elif num_ahead <= 0 or num_slots_left < num_ahead:
            num_ahead = num_slots_left
        entry.due_step = self._num_steps + num_ahead
        if num_ahead > 0:
            self._due[entry.due_step].append(entry)

    def _leave(self, entry: _Entry) -> None:
        seq = self._synced(entry)
        self._tbts_s[seq.request.slo.tbt_s] -= 1
        self.num_tokens -= seq.num_tokens
        self.num_remaining -= seq.predicted_tokens - seq.num_emitted
        if seq.cache is CacheKind.HIDDEN:
            self._num_hidden -= 1
            self.num_hidden_tokens -= seq.num_tokens
        if entry in self._fresh:
            del self._fresh[entry]
        else:
            pace = self._paces[seq.tpot_s]
            pace.remove(entry)
            if not pace:
                del self._paces[seq.tpot_s]
        self._rejoined.pop(entry, None)
        self._short.pop(entry, None)
