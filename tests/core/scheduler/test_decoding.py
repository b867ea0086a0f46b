"""Sequences that decode together have the same state as if each had been counted alone."""

from math import ceil, inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from macroserve.core.request import Request, Slo
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.decoding import Decoding
from macroserve.core.scheduler.sequence import Sequence

STEP_S = 0.05


def make(
    name,
    *,
    tpot_s=0.1,
    tbt_s=None,
    prompt=10,
    slots=32,
    predicted=20,
    sure=0,
    hidden=False,
    emitted=1,
):
    request = Request(name, 0.0, prompt, 1000, Slo(1.0, tpot_s, tbt_s))
    seq = Sequence(request, 0, 0.0, predicted, 0.1, 0.1, 0.1, sure)
    seq.num_slots = slots
    seq.cache = CacheKind.HIDDEN if hidden else CacheKind.KV
    if emitted:
        seq.emit(emitted, 0.0)
    return seq


def not_lost(sequences, now, step_s):
    """Return the sequences that can still meet their target, each with its saved time."""
    return [
        (seq, saved_s)
        for seq in sequences
        if (saved_s := seq.tpot_budget_until_s - now) >= 0
        or saved_s + seq.num_remaining * (seq.tpot_s - step_s) >= 0
    ]


def saved_p10(sequences, now, step_s):
    saved = sorted(saved_s for _, saved_s in not_lost(sequences, now, step_s))
    return saved[ceil(0.1 * len(saved)) - 1] if saved else inf


def spendable_p10(sequences, now, step_s, pace_s, most_s):
    spendable = sorted(
        min(most_s, saved_s + max(0, seq.sure_tokens - seq.num_emitted) * (seq.tpot_s - pace_s))
        if seq.tpot_s > pace_s
        else min(most_s, saved_s)
        for seq, saved_s in not_lost(sequences, now, step_s)
    )
    return spendable[ceil(0.1 * len(spendable)) - 1] if spendable else 0.0


class InStep(RuleBasedStateMachine):
    """The machine compares with a model in which every sequence counts each of its tokens."""

    @initialize()
    def begin(self):
        self.decoding = Decoding()
        self.model = {}
        self.now = 0.0
        self.num = 0

    @rule(
        tpot_s=st.sampled_from([0.04, 0.1]),
        tbt_s=st.sampled_from([None, 0.07, 0.17]),
        prompt=st.integers(1, 40),
        slots=st.integers(0, 60),
        predicted=st.integers(1, 30),
        sure=st.integers(0, 12),
        hidden=st.booleans(),
        emitted=st.integers(0, 3),
    )
    def come(self, **fields):
        self.num += 1
        name = f"r{self.num}"
        fields["predicted"] += fields["emitted"]
        self.decoding.add(make(name, **fields))
        self.model[name] = make(name, **fields)

    @rule(num_tokens=st.integers(1, 5), steps=st.integers(1, 4), data=st.data())
    def step(self, num_tokens, steps, data):
        self.now += steps * STEP_S
        names = sorted(self.model)
        apart = data.draw(st.sets(st.sampled_from(names))) if names else set()
        for name in names:
            if name not in apart:
                self.model[name].emit(num_tokens, self.now)
        long = self.decoding.emit(num_tokens, self.now, apart)
        self.check_long({seq.request_id for seq in long} - apart, set(names) - apart)
        for seq in long:
            self.expect(seq, 7)

    @precondition(lambda self: self.model)
    @rule(num_tokens=st.integers(0, 3), data=st.data())
    def one(self, num_tokens, data):
        self.now += STEP_S
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.model[name].emit(num_tokens, self.now)
        seq = self.decoding.get(name)
        if self.decoding.change(seq, seq.emit, num_tokens, self.now):
            self.check_long({name}, {name})
            self.expect(seq, 5)
        else:
            self.check_long(set(), {name})

    @precondition(lambda self: self.model)
    @rule(num_slots=st.integers(1, 20), data=st.data())
    def enlarge(self, num_slots, data):
        name = data.draw(st.sampled_from(sorted(self.model)))
        seq = self.model[name]
        seq.num_slots += num_slots
        self.decoding.resize(self.decoding.get(name), seq.num_slots)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data):
        name = data.draw(st.sampled_from(sorted(self.model)))
        left, expected = self.decoding.pop(name), self.model.pop(name)
        self.check_same(left, expected)

    @rule()
    def clocks_start(self):
        self.decoding.start_clocks(self.now)
        for seq in self.model.values():
            if seq.num_emitted <= 1:
                seq.tpot_budget_until_s = self.now

    @invariant()
    def sums(self):
        if not hasattr(self, "model"):
            return
        seqs = list(self.model.values())
        assert list(self.decoding) == list(self.model)
        assert self.decoding.num_tokens == sum(seq.num_tokens for seq in seqs)
        hidden = sum(seq.num_tokens for seq in seqs if seq.cache is CacheKind.HIDDEN)
        assert self.decoding.num_hidden_tokens == hidden
        remaining = sum(seq.predicted_tokens - seq.num_emitted for seq in seqs)
        assert self.decoding.num_remaining == remaining
        assert self.decoding.min_tpot_s == min([seq.tpot_s for seq in seqs], default=inf)
        assert self.decoding.has_looser == (len({seq.tpot_s for seq in seqs}) > 1)
        short = [seq.request_id for seq in seqs if seq.num_tokens >= seq.num_slots]
        assert [seq.request_id for seq in self.decoding.short] == short

    @invariant()
    def slack(self):
        if not hasattr(self, "model"):
            return
        seqs = list(self.model.values())
        waits = [[seq.pending_since_s for seq in seqs], [seq.patience_s for seq in seqs]]
        assert list(self.decoding.waits) == waits
        begun = [seq for seq in seqs if seq.num_emitted > 1]
        mean = (
            sum(seq.tpot_budget_until_s for seq in begun) / len(begun) - self.now if begun else inf
        )
        assert self.decoding.saved_tpot_mean_s(self.now) == pytest.approx(mean)
        now = self.now + 0.33371  # no slack is nothing but for rounding
        for step_s in (STEP_S, -inf):
            assert self.decoding.saved_tpot_s(0.1, now, step_s) == pytest.approx(
                saved_p10(begun, now, step_s)
            )
        for pace_s, most_s in ((0.06, 100.0), (0.02, 0.4), (inf, 100.0)):
            assert self.decoding.spendable_s(0.1, now, STEP_S, pace_s, most_s) == pytest.approx(
                spendable_p10(seqs, now, STEP_S, pace_s, most_s)
            )
            tight = [seq for seq in seqs if seq.tpot_s <= 0.04]
            of_tight_s = self.decoding.spendable_s(0.1, now, STEP_S, pace_s, most_s, 0.04)
            assert of_tight_s == pytest.approx(spendable_p10(tight, now, STEP_S, pace_s, most_s))

    def teardown(self):
        for name, expected in getattr(self, "model", {}).items():
            self.check_same(self.decoding.get(name), expected)
            self.check_same(self.decoding[name], expected)
        for seq, expected in (
            zip(self.decoding.values(), self.model.values(), strict=True)
            if hasattr(self, "model")
            else ()
        ):
            self.check_same(seq, expected)

    def expect(self, seq, more):
        num_tokens = seq.num_emitted + more
        self.decoding.expect(seq, num_tokens)
        self.model[seq.request_id].predicted_tokens = num_tokens

    def check_long(self, told, among):
        reached = {n for n in among if self.model[n].num_emitted >= self.model[n].predicted_tokens}
        assert told == reached

    def check_same(self, seq, expected):
        for field in ("num_tokens", "num_emitted", "num_slow", "num_slots", "predicted_tokens"):
            assert getattr(seq, field) == getattr(expected, field), field
        for field in ("tpot_budget_until_s", "pending_since_s", "first_token_s"):
            assert getattr(seq, field) == pytest.approx(getattr(expected, field)), field


InStep.TestCase.settings = settings(stateful_step_count=40)
TestInStep = InStep.TestCase


def decoding_with(saved, now, left=10):
    """Return sequences that have saved the given times at ``now`` and have ``left`` tokens to
    go."""
    decoding = Decoding()
    for index, saved_s in enumerate(saved):
        seq = make(f"r{index}", predicted=2 + left, emitted=2)
        seq.tpot_budget_until_s = now + saved_s
        decoding.add(seq)
    return decoding


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ([], inf),
        ([0.4], 0.4),
        ([0.5] * 9 + [0.1], 0.1),
        ([0.5] * 10 + [0.1], 0.5),  # one of eleven does not count
        ([0.5, -0.3], -0.3),  # it can catch up: ten steps save 0.05 s each
        ([0.5, -0.6], 0.5),  # it cannot, and is left out
        ([-0.6], inf),
    ],
)
def test_saved_tpot_of_a_share_is_the_nearest_rank(saved, expected):
    decoding = decoding_with(saved, now=30.0)
    assert decoding.saved_tpot_s(0.1, 30.0, STEP_S) == pytest.approx(expected)


def test_saved_tpot_shrinks_with_time_and_grows_with_tokens():
    decoding = decoding_with([0.2, 0.7, 0.4], now=10.0, left=1000)
    assert decoding.saved_tpot_s(0.1, 11.0, STEP_S) == pytest.approx(0.2 - 1.0)
    decoding.emit(4, 11.0)
    assert decoding.saved_tpot_s(0.1, 11.0, STEP_S) == pytest.approx(0.2 - 1.0 + 4 * 0.1)
    assert decoding.saved_tpot_mean_s(11.0) == pytest.approx(1.3 / 3 - 1.0 + 4 * 0.1)


@pytest.mark.parametrize(
    ("request_ids", "are_all"),
    [(("a", "b"), True), (("b", "a"), True), (("a", "c"), False), (("a",), False)],
)
def test_ids_are_all_if_each_sequence_has_one(request_ids, are_all):
    decoding = Decoding()
    for name in ("a", "b"):
        decoding.add(make(name))
    assert decoding.are_all(request_ids) is are_all


@pytest.mark.parametrize(
    ("saved", "sure", "pace_s", "expected"),
    [
        ([], 0, 0.06, 0.0),
        ([0.4], 0, 0.06, 0.4),
        ([0.1], 12, 0.06, 0.5),  # ten tokens to come save 0.04 s each
        ([0.1], 12, 0.12, 0.1),  # none is saved where each takes more than the target
        ([0.1], 2, 0.06, 0.1),  # all that are sure are out
        ([-0.3], 12, 0.06, 0.1),
        ([-0.6], 12, 0.06, 0.0),  # lost, whatever it saves yet
        ([9.0], 0, 0.06, 5.0),  # more is not asked for
        ([9.0] * 10 + [0.1], 0, 0.06, 5.0),  # one of eleven does not count
    ],
)
def test_spendable_time_is_that_of_all_but_the_poorest_share(saved, sure, pace_s, expected):
    decoding = Decoding()
    for seq in decoding_with(saved, now=30.0).values():
        seq.sure_tokens = sure
        decoding.add(seq)
    assert decoding.spendable_s(0.1, 30.0, STEP_S, pace_s, 5.0) == pytest.approx(expected)


def test_spendable_time_of_a_first_token_is_what_it_surely_saves():
    decoding = Decoding()
    decoding.add(make("r", sure=6))
    assert decoding.spendable_s(0.1, 0.2, STEP_S, 0.06, 5.0) == pytest.approx(-0.2 + 5 * 0.04)
