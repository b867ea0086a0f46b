"""Decision tables list the picks of each batching policy over a linear clock."""

import pytest
from support.linear_latency import NOW

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.status import Phase, Pool
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache

BY_PERCENTILE = {"mean_slack": False}
QUEUEING = [
    name
    for name, strategy in STRATEGIES.items()
    if not (strategy.hybrid_cache is HybridCache.VALUE or strategy.queues_responses)
]
"""Strategies that take requests in the order of a queue; the others choose among all that wait."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pool", Pool)
def test_batching_without_work_returns_an_idle_plan(compose, strategy, pool):
    kind, picks, decodes, _ = compose(strategy, pool=pool)
    assert (kind, picks, decodes) == (BatchKind.IDLE, [], [])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batching_with_chunks_larger_than_a_batch_stays_within_it(compose, strategy):
    _, picks, _, _ = compose(strategy, waiting=(300, 300), chunk_tokens=1024, max_batch_tokens=512)
    assert 300 <= sum(num_tokens for _, num_tokens in picks) <= 512


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pool", Pool)
def test_batching_with_only_decodes_runs_all_of_them(compose, strategy, pool):
    kind, picks, decodes, _ = compose(strategy, [0.5, -3.0], pool=pool)
    assert (kind, picks, decodes) == (BatchKind.DECODE, [], ["d0", "d1"])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pool", Pool)
def test_batching_with_only_prompts_prefills_them(compose, strategy, pool):
    kind, picks, _, _ = compose(strategy, [], [100, 200], pool=pool)
    assert kind is BatchKind.PREFILL
    assert sorted(picks) == [("w0", 100), ("w1", 200)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_admission_of_begun_prompts_comes_first_and_needs_no_seat(compose, strategy):
    _, picks, _, _ = compose(strategy, [9.0], [100], begun=[50], begun_s=0.95, max_num_seqs=2)
    assert picks == [("b0", 50)]
    _, picks, _, _ = compose(strategy, [9.0], [100], begun=[50, 60], begun_s=0.5)
    assert [name for name, _ in picks][:2] == ["b0", "b1"]


@pytest.mark.parametrize("strategy", QUEUEING)
@pytest.mark.parametrize(
    "limit", [{"max_num_seqs": 3}, {"num_blocks": 2 * 2 + 25}], ids=["seats", "memory"]
)
def test_admission_after_a_prompt_without_room_admits_none(compose, strategy, limit):
    """The prompt w1 does not fit; w2 would."""
    _, picks, _, _ = compose(strategy, [90.0, 90.0], [20, 400, 20], **limit)
    assert picks == [("w0", 20)]


@pytest.mark.parametrize(
    ("waiting", "kind", "expected"),
    [
        ([300, 200], BatchKind.PREFILL, [("w0", 300), ("w1", 200)]),
        ([300, 300], BatchKind.PREFILL, [("w0", 300)]),  # whole prompts only
        ([700, 10], BatchKind.PREFILL, [("w0", 512)]),  # longer than any batch
        ([300, 700], BatchKind.PREFILL, [("w0", 300), ("w1", 212)]),
    ],
)
def test_prefill_first_batch_runs_prompts_before_decodes(compose, waiting, kind, expected):
    """A batch has 512 tokens here."""
    assert compose("prefill-first", [-9.0], waiting)[:3] == (kind, expected, [])


@pytest.mark.parametrize(
    ("decodes", "case", "expected"),
    [
        (0, {"waiting": [300, 300]}, [("w0", 300), ("w1", 212)]),
        (2, {"waiting": [300, 300]}, [("w0", 300), ("w1", 210)]),  # 512 tokens with the decodes
        (2, {"waiting": [700, 10]}, [("w0", 510)]),  # in the order of arrival
        (2, {"begun": [300], "waiting": [300]}, [("b0", 300), ("w0", 210)]),  # the begun first
        (2, {"begun": [700], "waiting": [10]}, [("b0", 510)]),
        (98, {"waiting": [10, 10, 10]}, [("w0", 10), ("w1", 10)]),  # a hundred seats
        (2, {"waiting": [90, 90], "num_blocks": 2 * 2 + 7}, [("w0", 90)]),  # blocks for one
    ],
)
@pytest.mark.parametrize("chunk_tokens", [64, 1024])
def test_mixed_batch_fills_the_batch_beside_decodes(compose, decodes, case, expected, chunk_tokens):
    """A batch has 512 tokens here, whatever Sarathi's chunk is."""
    kind, picks, chosen, _ = compose(
        "vllm", [-9.0] * decodes, max_num_seqs=100, chunk_tokens=chunk_tokens, **case
    )
    assert (picks, len(chosen)) == (expected, decodes)
    assert kind is (BatchKind.MIXED if decodes else BatchKind.PREFILL)


@pytest.mark.parametrize(
    ("decodes", "waiting", "expected"),
    [
        (2, [300], [("w0", 62)]),  # 64 tokens with the decodes
        (2, [30, 30, 30], [("w0", 30), ("w1", 30), ("w2", 2)]),
        (64, [30], []),
        (70, [30], []),
    ],
)
def test_chunked_batch_fills_the_chunk_beside_decodes(compose, decodes, waiting, expected):
    kind, picks, chosen, _ = compose(
        "sarathi", [0.0] * decodes, waiting, chunk_tokens=64, max_num_seqs=100
    )
    assert (picks, len(chosen)) == (expected, decodes)
    assert kind is (BatchKind.MIXED if expected else BatchKind.DECODE)


@pytest.mark.parametrize(
    ("case", "kind", "expected", "reason"),
    [
        # A batch of 300 takes 0.32 s.
        ({"decoding": [0.33], "waiting": [300]}, BatchKind.PREFILL, [("w0", 300)], "pays"),
        ({"decoding": [0.31], "waiting": [300]}, BatchKind.DECODE, [], "not pay"),
        ({"waiting": [300, 300]}, BatchKind.PREFILL, [("w0", 300)], "nothing to decode"),
        # Less than all that waits, but whole prompts.
        ({"decoding": [0.33], "waiting": [200, 200]}, BatchKind.PREFILL, [("w0", 200)], "pays"),
        ({"decoding": [0.33], "waiting": [700]}, BatchKind.PREFILL, [("w0", 310)], "pays"),
        # The mean counts, or else the tenth percentile.
        ({"decoding": [0.66, 0.0], "waiting": [300]}, BatchKind.PREFILL, [("w0", 300)], "pays"),
        ({"decoding": [0.6, 0.0], "waiting": [300]}, BatchKind.DECODE, [], "not pay"),
        (
            {"decoding": [9.0] * 9 + [0.1], "waiting": [300], "changes": BY_PERCENTILE},
            BatchKind.DECODE,
            [],
            "not pay",
        ),
        (
            {"decoding": [9.0] * 10 + [0.1], "waiting": [300], "changes": BY_PERCENTILE},
            BatchKind.PREFILL,
            [("w0", 300)],
            "pays",
        ),
        # Sequences with one token out have not begun to decode: they do not count.
        (
            {"decoding": [0.5], "fresh": 3, "waiting": [300]},
            BatchKind.PREFILL,
            [("w0", 300)],
            "pays",
        ),
        (
            {"fresh": 1, "waiting": [300], "phase": Phase.PREFILL, "phase_s": 0.9},
            BatchKind.PREFILL,
            [("w0", 300)],
            "pays",
        ),
        # A prefill phase lasts one TTFT target at most.
        (
            {"fresh": 1, "waiting": [300], "phase": Phase.PREFILL, "phase_s": 1.0},
            BatchKind.DECODE,
            [],
            "not pay",
        ),
        ({"fresh": 1, "waiting": [300], "phase_s": 1.0}, BatchKind.PREFILL, [("w0", 300)], "pays"),
        # Overdue: as much as the decode batch took (22 ms), at least one prompt, then decode.
        (
            {"decoding": [0.0], "waiting": [300, 10], "waited_s": 2.1},
            BatchKind.PREFILL,
            [("w0", 300)],
            "too long",
        ),
        (
            {"decoding": [0.0] * 16, "waiting": [10, 10, 10], "waited_s": 2.1},
            BatchKind.PREFILL,
            [("w0", 10), ("w1", 10), ("w2", 10)],
            "too long",
        ),
        ({"decoding": [0.0], "waiting": [300], "waited_s": 1.9}, BatchKind.DECODE, [], "not pay"),
        (
            {"decoding": [0.0], "waiting": [300], "waited_s": 2.1, "phase": Phase.PREFILL},
            BatchKind.DECODE,
            [],
            "not pay",
        ),
    ],
)
def test_ecoserve_batch_runs_one_phase_by_saved_tpot(compose, case, kind, expected, reason):
    got, picks, decodes, why = compose("ecoserve", max_num_seqs=32, **case)
    assert (got, picks) == (kind, expected) and reason in why
    assert bool(decodes) == (kind is BatchKind.DECODE)


def test_ecoserve_batch_counts_tpot_from_the_first_decode_batch(make_step):
    step = make_step("ecoserve", [-0.2], fresh=1)
    waiting, begun = step.inputs.decoding["d1"], step.inputs.decoding["d0"]
    assert waiting.tpot_budget_until_s == pytest.approx(NOW - 1.0)
    assert step.plan().kind is BatchKind.DECODE
    assert waiting.tpot_budget_until_s == NOW
    assert begun.tpot_budget_until_s == NOW - 0.2


@pytest.mark.parametrize("begun_s", [1.9, 2.1])
def test_begun_prompt_that_waits_too_long_is_overdue(compose, begun_s):
    kind, picks, _, _ = compose("ecoserve", [0.0], begun=[300], begun_s=begun_s)
    if begun_s < 2:
        assert kind is BatchKind.DECODE
    else:
        assert (kind, picks) == (BatchKind.PREFILL, [("b0", 300)])


@pytest.mark.parametrize(
    ("targets_s", "phase_s", "kind"),
    [
        ((1.0, 30.0), 0.9, BatchKind.PREFILL),
        ((1.0, 30.0), 1.1, BatchKind.DECODE),
        ((30.0,), 29.0, BatchKind.PREFILL),
        ((30.0,), 31.0, BatchKind.DECODE),
    ],
)
@pytest.mark.parametrize("default_s", [0.1, 100.0])
def test_ecoserve_prefill_phase_lasts_for_the_tightest_ttft_that_waits(
    make_step, make_sequence, targets_s, phase_s, kind, default_s
):
    """The default class does not count, nor do prompts, which do not wait for its end."""
    step = make_step(
        "ecoserve", waiting=[100], phase=Phase.PREFILL, phase_s=phase_s, slo=Slo(default_s, 0.1)
    )
    for index, ttft_s in enumerate(targets_s):
        seq = make_sequence(f"d{index}", 9 + index, prompt=10, new=1000, slo=Slo(ttft_s, 0.1))
        step.inputs.running.admit(seq, 2)
        seq.emit(2, NOW)
        seq.tpot_budget_until_s = NOW + 9.0
        step.inputs.running.start_decoding(seq)
    assert step.plan().kind is kind
