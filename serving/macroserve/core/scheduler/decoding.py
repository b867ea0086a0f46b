"""The decoding sequences mostly advance together, so that one step of all costs O(1).

A step changes each sequence alike: one more token, a little more of its TPOT budget used, one token
less to come. The change is stored once for all, and applied to a sequence when it is read.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from math import ceil, inf

from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.sequence import Sequence


class Decoding:
    """The collection holds decoding sequences by id, in order of entry, and updates each when it is
    read.

    Attributes:
        num_tokens: tokens in the cache, of all sequences together.
        num_hidden_tokens: those of them that are cached as hidden states.
        num_remaining: tokens still expected of all sequences.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_hidden_tokens = 0
        self.num_remaining = 0
        self._seqs: dict[str, Sequence] = {}
        self._num_hidden = 0
        self._num_steps = 0
        self._last_step_s = 0.0
        self._num_slow: dict[float | None, int] = {}
        self._num_added = 0
        self._paces: dict[float, _TpotGroup] = {}
        self._fresh: dict[Sequence, None] = {}
        self._rejoined: dict[Sequence, None] = {}
        self._short: dict[Sequence, None] = {}
        self._due: defaultdict[int, list[Sequence]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._seqs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._seqs)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._seqs

    def __getitem__(self, request_id: str) -> Sequence:
        return self._synced(self._seqs[request_id])

    def get(self, request_id: str) -> Sequence | None:
        seq = self._seqs.get(request_id)
        return self._synced(seq) if seq else None

    def values(self) -> Iterator[Sequence]:
        return map(self._synced, self._seqs.values())

    def add(self, seq: Sequence) -> None:
        self._seqs[seq.request_id] = seq
        self._num_added += 1
        seq.place = self._num_added
        self._enter(seq)

    def pop(self, request_id: str) -> Sequence:
        seq = self._seqs[request_id]
        self._leave(seq)
        del self._seqs[request_id]
        return seq

    def step_s(self, latency: LatencyModel) -> float:
        """Return the predicted time of a step of all sequences and nothing else, seconds."""
        work = latency.work((), len(self), self.num_tokens, self.num_hidden_tokens)
        return latency.predict(work)

    # -- tokens

    def emit(self, num_tokens: int, now: float, apart: Iterable[str] = ()) -> list[Sequence]:
        """Give each sequence except ``apart`` ``num_tokens`` more tokens, the last of them at
        ``now``.

        Returns the sequences that reached their expected length.
        """
        standing = [self._seqs[request_id] for request_id in apart]
        for seq in standing:
            self._leave(seq)
        for seq in (*self._fresh, *self._rejoined):
            self._leave(seq)
            seq.emit(num_tokens, now)
            standing.append(seq)
        before, num = self._num_steps, len(self._seqs) - len(standing)
        self._num_steps += num_tokens
        for tbt_s in self._num_slow:
            self._num_slow[tbt_s] += tbt_s is not None and now - self._last_step_s > tbt_s
        self._last_step_s = now
        self.num_tokens += num * num_tokens
        self.num_hidden_tokens += self._num_hidden * num_tokens
        self.num_remaining -= num * num_tokens
        for seq in standing:
            self._enter(seq)
        changed = standing
        for step in range(before + 1, self._num_steps + 1):
            for seq in self._due.pop(step, ()):
                # The sequence may have left, or got another due step, since this one was noted.
                if self._seqs.get(seq.request_id) is seq and seq.due_step == step:
                    self._look_ahead(self._synced(seq))
                    changed.append(seq)
        return [seq for seq in changed if seq.num_emitted >= seq.predicted_tokens]

    def emit_one(self, seq: Sequence, num_tokens: int, now: float) -> bool:
        """Give one sequence its tokens; return whether it reached its expected length."""
        self._leave(seq)
        seq.emit(num_tokens, now)
        self._enter(seq)
        return seq.num_emitted >= seq.predicted_tokens

    def expect(self, seq: Sequence, num_tokens: int) -> None:
        """Set the expected length of a sequence's response, tokens."""
        self.num_remaining += num_tokens - seq.predicted_tokens
        seq.predicted_tokens = num_tokens
        self._look_ahead(self._synced(seq))

    def resize(self, seq: Sequence, num_slots: int) -> None:
        """Set the number of tokens that a sequence's blocks have room for."""
        seq.num_slots = num_slots
        self._short.pop(seq, None)
        self._look_ahead(self._synced(seq))

    @property
    def short(self) -> list[Sequence]:
        """Return the sequences without a slot for their next token, in order."""
        return sorted(map(self._synced, self._short), key=lambda seq: seq.place)

    # -- slack

    @property
    def waits(self) -> tuple[list[float], list[float]]:
        """Return ``pending_since_s`` and ``patience_s`` of each sequence, without updating any of
        them."""
        steps, last_s, seqs = self._num_steps, self._last_step_s, self._seqs.values()
        since_s = [last_s if seq.as_of_step < steps else seq.pending_since_s for seq in seqs]
        return since_s, [seq.patience_s for seq in seqs]

    @property
    def min_tpot_s(self) -> float:
        """Return the tightest TPOT target, seconds; infinite if no sequence decodes."""
        return min(chain(self._paces, [seq.tpot_s for seq in self._fresh]), default=inf)

    def start_clocks(self, now: float) -> None:
        """Count the time per token from ``now`` for sequences with only their first token out."""
        for seq in self._fresh:
            seq.tpot_budget_until_s = now

    def saved_tpot_mean_s(self, now: float) -> float:
        """Return the mean saved TPOT as in EcoServe's Algorithm 2, seconds; infinite without
        sequences.

        Sequences with only their first token out save nothing yet and are left out.
        """
        num = len(self._seqs) - len(self._fresh)
        if not num:
            return inf
        steps = self._num_steps
        saved_s = sum([p.total + len(p) * tpot_s * steps for tpot_s, p in self._paces.items()])
        return saved_s / num - now

    def saved_tpot_s(self, share: float, now: float, step_s: float = -inf) -> float:
        """Return the saved TPOT, seconds, below which the ``share`` of the requests is (nearest
        rank); may be negative.

        The paper takes the mean, in which old requests hide young ones. Requests that miss their
        TPOT target even if every further step takes ``step_s``, the time of a decode step, are left
        out, since no time can be saved there. So are those with only their first token out.
        Infinite if none is left.
        """
        parts: list[tuple[list[float], float, list[int]]] = []
        for tpot_s, pace in self._paces.items():
            ahead_s = tpot_s * self._num_steps - now
            behind = pace.seqs[: bisect_left(pace.keys, -ahead_s)]
            lost = [
                index
                for index, seq in enumerate(behind)
                if self._is_lost(seq, pace.keys[index] + ahead_s, step_s)
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
        self, share: float, now: float, step_s: float, pace_s: float, most_s: float
    ) -> float:
        """Return the seconds that all requests but the poorest ``share`` of them can spend (nearest
        rank).

        The result is negative if they have to catch up, and ``most_s`` if they have more. Each has
        the time it saved, and the time it will save by the tokens that it is nearly sure to get, at
        ``pace_s`` for each. The same requests are left out as of ``saved_tpot_s``, except those
        with only their first token out. 0 if none is left.
        """
        num = len(self._seqs)
        least = [most_s] * ceil(share * num)
        lines = [(tpot_s * self._num_steps, p.keys, p.seqs) for tpot_s, p in self._paces.items()]
        if fresh := list(self._fresh):
            fresh.sort(key=lambda seq: seq.tpot_budget_until_s)
            lines.append((0.0, [seq.tpot_budget_until_s for seq in fresh], fresh))
        for ahead_s, keys, seqs in lines:
            for key, seq in zip(keys, seqs, strict=True):
                saved_s = key + ahead_s - now
                if max(least[-1], 0.0) <= saved_s:  # no later one has less, or is lost
                    break
                if self._is_lost(seq, saved_s, step_s):
                    num -= 1
                    continue
                num_sure = seq.sure_tokens - seq.num_emitted - self._num_steps + seq.as_of_step
                gain_s = max(0, num_sure) * max(0.0, seq.tpot_s - pace_s)
                insort(least, saved_s + gain_s)
                least.pop()
        return least[ceil(share * num) - 1] if num else 0.0

    # -- common steps, and the state of each sequence

    def _is_lost(self, seq: Sequence, saved_s: float, step_s: float) -> bool:
        """Return whether the sequence misses its target even if it decodes in every step from now
        on."""
        num_behind = self._num_steps - seq.as_of_step
        num_left = max(1, seq.predicted_tokens - seq.num_emitted - num_behind)
        return saved_s < 0 and saved_s + num_left * (seq.tpot_s - step_s) < 0

    def _synced(self, seq: Sequence) -> Sequence:
        if num_steps := self._num_steps - seq.as_of_step:
            seq.as_of_step = self._num_steps
            num_slow = self._num_slow[seq.request.slo.tbt_s]
            seq.num_slow += num_slow - seq.as_of_slow
            seq.as_of_slow = num_slow
            seq.pending_since_s = self._last_step_s  # so that no gap is counted twice
            seq.emit(num_steps, self._last_step_s)
        return seq

    def _enter(self, seq: Sequence) -> None:
        """Let the sequence take part in the common steps from now on."""
        seq.as_of_step = self._num_steps
        seq.as_of_slow = self._num_slow.setdefault(seq.request.slo.tbt_s, 0)
        self.num_tokens += seq.num_tokens
        self.num_remaining += seq.predicted_tokens - seq.num_emitted
        if seq.cache is CacheKind.HIDDEN:
            self._num_hidden += 1
            self.num_hidden_tokens += seq.num_tokens
        if seq.num_emitted > 1:
            seq.pace_key = seq.tpot_budget_until_s - seq.tpot_s * self._num_steps
            self._paces.setdefault(seq.tpot_s, _TpotGroup()).add(seq)
            if seq.pending_since_s != self._last_step_s:
                self._rejoined[seq] = None
        else:
            self._fresh[seq] = None
        self._look_ahead(seq)

    def _look_ahead(self, seq: Sequence) -> None:
        """Note the step in which a sequence runs out of slots or exceeds its expected length."""
        num_slots_left = seq.num_slots - seq.num_tokens
        num_ahead = seq.predicted_tokens - seq.num_emitted
        if num_slots_left <= 0:
            self._short[seq] = None
        elif num_ahead <= 0 or num_slots_left < num_ahead:
            num_ahead = num_slots_left
        seq.due_step = self._num_steps + num_ahead
        if num_ahead > 0:
            self._due[seq.due_step].append(seq)

    def _leave(self, seq: Sequence) -> None:
        self._synced(seq)
        self.num_tokens -= seq.num_tokens
        self.num_remaining -= seq.predicted_tokens - seq.num_emitted
        if seq.cache is CacheKind.HIDDEN:
            self._num_hidden -= 1
            self.num_hidden_tokens -= seq.num_tokens
        if seq in self._fresh:
            del self._fresh[seq]
        else:
            pace = self._paces[seq.tpot_s]
            pace.remove(seq)
            if not pace:
                del self._paces[seq.tpot_s]
        self._rejoined.pop(seq, None)
        self._short.pop(seq, None)


class _TpotGroup:
    """The group holds sequences of one TPOT target in order of their slack, which no common step
    changes.

    Attributes:
        keys: end of each sequence's TPOT budget less the target for each common step, seconds.
        total: sum of the keys, seconds.
    """

    __slots__ = ("keys", "seqs", "total")

    def __init__(self) -> None:
        self.keys: list[float] = []
        self.seqs: list[Sequence] = []
        self.total = 0.0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, seq: Sequence) -> None:
        index = bisect_right(self.keys, seq.pace_key)
        self.keys.insert(index, seq.pace_key)
        self.seqs.insert(index, seq)
        self.total += seq.pace_key

    def remove(self, seq: Sequence) -> None:
        index = self.seqs.index(seq, bisect_left(self.keys, seq.pace_key))
        del self.keys[index], self.seqs[index]
        self.total -= seq.pace_key
