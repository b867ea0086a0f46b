"""Decision tables list what the unified strategy prefills beside decodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.linear_latency import NOW, LinearLatency

from macroserve.core.batch import BatchKind
from macroserve.core.request import Slo
from macroserve.core.scheduler.batching.unified import (
    EVEN_RISE,
    EVEN_STEP,
    MAX_STEP_TPOTS,
    SAVED_SHARE,
    STEP_TARGET,
)


@pytest.mark.parametrize(
    ("case", "tokens", "reason"),
    [
        # A step may take 80 ms: 20 for the batch, 20 for ten decodes, 40 tokens.
        ({"saved": 0.0}, 40, "pays"),
        ({"saved": 0.0, "decodes": 1}, 58, "pays"),
        # A quarter of what was saved, or lost, is added.
        ({"saved": 0.08}, 60, "pays"),
        ({"saved": -0.08}, 20, "pays"),
        ({"saved": -0.16}, 0, "does not pay"),
        # Where decodes take 70 ms, or 80, 20 more, but never more than 95.
        ({"saved": 0.0, "decodes": 25}, 20, "pays"),
        ({"saved": 0.04, "decodes": 25}, 30, "pays"),
        ({"saved": 0.02, "decodes": 30}, 20, "pays"),
        ({"saved": 0.0, "decodes": 30}, 0, "does not pay"),
        # Four targets at most: 360 ms for the prompt.
        ({"saved": 5.0, "begun": [900]}, 360, "pays"),
        # Whatever was saved, seven tenths of the target for the time between two tokens.
        ({"saved": 5.0, "slo": Slo(1.0, 0.1, 0.1)}, 30, "pays"),
        ({"saved": 0.0, "slo": Slo(1.0, 0.1, 0.2)}, 40, "pays"),
        # A first token alone saves nothing.
        ({"decodes": 30, "fresh": 1, "saved": 1.0}, 0, "does not pay"),
        # Not worth it: 15 tokens.
        ({"saved": -0.1}, 0, "does not pay"),
        # A prompt is overdue, but others were prefilled in between; or none was.
        ({"saved": -1.0, "begun_s": 2.1}, 0, "does not pay"),
        ({"saved": -1.0, "begun_s": 2.1, "prefilled_s": 2.1}, 300, "too long"),
    ],
)
def test_unified_batch_prefills_what_slack_pays_for(compose, case, tokens, reason):
    case = {"begun": [300], **case}
    decoding = [case.pop("saved")] * case.pop("decodes", 10)
    num_decodes = len(decoding) + case.get("fresh", 0)
    got, picks, decodes, why = compose("unified", decoding, max_num_seqs=128, **case)
    assert sum(n for _, n in picks) == tokens and reason in why
    assert got is (BatchKind.MIXED if tokens else BatchKind.DECODE)
    assert len(decodes) == num_decodes


@pytest.mark.parametrize(
    ("case", "tokens"),
    [
        # A step of 80 ms is planned as one of 64 ms: 20 for the batch, 20 for ten decodes.
        ({"error": 1.0}, 40),
        ({"error": 1.25}, 24),
        # A quarter of what was saved makes the 80 ms 100.
        ({"error": 1.25, "saved": 0.08}, 40),
        # Decodes of 70 ms take 77, which may become 95: planned as one of 86 ms.
        ({"error": 1.1, "decodes": 25}, 16),
        ({"error": 1.25, "decodes": 25}, 0),
        # Seven tenths of the target for the time between two tokens, planned as 56 ms.
        ({"error": 1.25, "saved": 5.0, "slo": Slo(1.0, 0.1, 0.1)}, 16),
        # Four more tokens at 40 ms each, known to take 50, save 0.2 s, a quarter of which is 50 ms.
        ({"error": 1.25, "sure": 6}, 64),
    ],
)
def test_unified_batch_plans_with_the_error_of_its_predictions(make_step, case, tokens):
    decoding = [case.get("saved", 0.0)] * case.get("decodes", 10)
    step = make_step(
        "unified",
        decoding,
        begun=[300],
        max_num_seqs=128,
        latency=LinearLatency(0.02, case["error"]),
        slo=case.get("slo", Slo(1.0, 0.1)),
    )
    for seq in step.inputs.decoding.values():
        seq.sure_tokens = case.get("sure", 0)
    assert sum(pick.num_tokens for pick in step.plan().picks) == tokens


@pytest.mark.parametrize(
    ("begun_tokens", "case", "tokens", "reason"),
    [
        # Slack pays for 40 tokens, as above: an eighth of what is computed, or less.
        (320, {}, 40, "pays"),
        (321, {}, 0, "saves"),
        (321, {"begun": [40]}, 40, "pays"),
        # More was saved, or nothing is left to save beside decodes of 50 ms.
        (480, {"saved": 0.08}, 60, "pays"),
        (481, {"saved": 0.08}, 0, "saves"),
        (481, {"decodes": 14}, 0, "saves"),
        (481, {"decodes": 15}, 30, "pays"),
        # No batch has room for an eighth.
        (3000, {"saved": 5.0, "begun": [900], "max_batch_tokens": 256}, 246, "pays"),
        (3000, {"saved": 5.0, "begun": [900]}, 0, "saves"),
        (3000, {"prefilled_s": 2.1, "begun_s": 2.1}, 300, "too long"),
        # Another prompt waits as well: the longest context counts.
        (321, {"waiting": [20]}, 0, "saves"),
    ],
)
def test_unified_batch_saves_time_for_a_piece_worth_reading_the_context(
    compose, begun_tokens, case, tokens, reason
):
    case = {"begun": [300], **case}
    decoding = [case.pop("saved", 0.0)] * case.pop("decodes", 10)
    got, picks, _, why = compose(
        "unified", decoding, begun_tokens=begun_tokens, max_num_seqs=128, **case
    )
    assert sum(n for _, n in picks) == tokens and reason in why
    assert got is (BatchKind.MIXED if tokens else BatchKind.DECODE)


@pytest.mark.parametrize(
    ("saved_s", "waiting", "expected"),
    [
        (0.049, [300], [("w0", 32)]),
        (0.046, [300], []),  # 31 tokens are too few to begin with
        (0.046, [25, 300], [("w0", 25)]),
        (0.046, [20, 11], [("w0", 20), ("w1", 11)]),
    ],
)
def test_unified_batch_begins_no_prompt_with_a_small_piece(compose, saved_s, waiting, expected):
    _, picks, _, _ = compose("unified", [saved_s] * 20, waiting, max_num_seqs=128)
    assert picks == expected


@pytest.mark.parametrize(("num_rich", "tokens"), [(49, 0), (50, 223)])
def test_unified_batch_spends_what_all_but_a_fiftieth_have_saved(compose, num_rich, tokens):
    """A decode that has saved nothing counts among fifty, and the next one among more than
    fifty."""
    _, picks, _, _ = compose("unified", [0.0] + [1.0] * num_rich, [300], max_num_seqs=128)
    assert sum(n for _, n in picks) == tokens


@pytest.mark.parametrize(
    ("sure", "pace_s", "tokens"),
    [
        (0, 0.0, 40),
        (2, 0.0, 40),  # both are out
        (6, 0.0, 100),  # four more, at 40 ms as a decode step takes: a quarter of 0.24 s
        (6, 0.08, 60),  # at the 80 ms that steps take of late: of 0.08 s
        (6, 0.2, 40),
        (100, 0.0, 300),
    ],
)
def test_unified_batch_spends_what_responses_will_surely_save(make_step, sure, pace_s, tokens):
    step = make_step("unified", [0.0] * 10, [300], max_num_seqs=128, pace_s=pace_s)
    for seq in step.inputs.decoding.values():
        seq.sure_tokens = sure
    plan = step.plan()
    assert sum(pick.num_tokens for pick in plan.picks) == tokens


@pytest.mark.parametrize(("spare", "admitted"), [(31, True), (30, False)])
def test_unified_batch_keeps_memory_for_growing_decodes(compose, spare, admitted):
    """Five decodes hold two blocks each and may grow by 998 tokens; a prompt of 100 takes eight."""
    _, picks, _, _ = compose(
        "unified", [1.0] * 5, [100], num_blocks=5 * 2 + 8 + spare, max_num_seqs=32
    )
    assert bool(picks) is admitted


@pytest.mark.parametrize(
    ("case", "tokens"),
    [
        # Four TPOT targets for all, as above, if no other request has a tighter TTFT target.
        ({}, 360),
        ({"tightest_s": 2.0}, 360),
        # A tenth of a tighter one: 90 ms, of which decodes take 40; or twice as long as these.
        ({"tightest_s": 0.9}, 50),
        ({"tightest_s": 0.5}, 40),
        ({"tightest_s": 0.001}, 40),
        ({"tightest_s": 0.9, "latency": LinearLatency(0.02, 1.125)}, 40),
        # What the decodes have saved pays for less.
        ({"tightest_s": 0.9, "saved": -0.08, "begun": [900]}, 20),
        # A piece to begin with, or an eighth of what is computed.
        ({"tightest_s": 0.5, "decodes": 1}, 32),
        ({"tightest_s": 0.5, "begun": [900], "begun_tokens": 800}, 100),
        # Nothing decodes: 20 ms for the batch.
        ({"tightest_s": 0.9, "decodes": 0}, 70),
        ({"tightest_s": 0.1, "decodes": 0}, 32),
        ({"decodes": 0}, 512),
        # Seats are taken: the prompt under way is as patient.
        ({"tightest_s": 0.9, "begun": [900], "max_num_seqs": 11}, 50),
        # It is starved: nothing was prefilled for two targets.
        ({"tightest_s": 0.5, "begun": [900], "begun_s": 2.1, "prefilled_s": 2.1}, 502),
    ],
)
def test_unified_batch_keeps_steps_of_patient_prompts_short(compose, case, tokens):
    case = {"waiting": [900], "max_num_seqs": 128, **case}
    if "begun" in case and case["max_num_seqs"] > 11:
        case["waiting"] = []
    decoding = [case.pop("saved", 5.0)] * case.pop("decodes", 10)
    _, picks, _, _ = compose("unified", decoding, **case)
    assert sum(n for _, n in picks) == tokens


@pytest.mark.parametrize(
    ("urgent", "patient", "cost_s", "expected"),
    [
        # 360 ms for the urgent one; the patient one goes on until the step takes 80.
        (10, 300, 0.2, [("urgent", 10), ("b0", 30)]),
        (40, 300, 0.2, [("urgent", 40)]),
        (100, 300, 0.2, [("urgent", 100)]),
        (900, 300, 0.2, [("urgent", 360)]),
        # Both are in time, in whatever order. A batch ends with the piece of a prompt.
        (10, 20, 0.1, [("b0", 20), ("urgent", 10)]),
        (10, 300, 0.1, [("b0", 40)]),
    ],
)
def test_unified_batch_gives_patient_prompts_what_urgent_ones_leave(
    make_step, make_sequence, urgent, patient, cost_s, expected
):
    step = make_step(
        "unified", [5.0] * 10, begun=[patient], begun_s=0.6, tightest_s=0.5, max_num_seqs=128
    )
    slo = Slo(0.5, 0.1)
    step.inputs.waiting.add(
        make_sequence("urgent", 99, arrival_s=NOW - 0.2, prompt=urgent, slo=slo, cost_s=cost_s)
    )
    assert [(p.seq.request_id, p.num_tokens) for p in step.plan().picks] == expected


def test_unified_batch_without_decodes_prefills_all_it_can(compose):
    kind, picks, _, _ = compose("unified", [], [300, 300])
    assert (kind, picks) == (BatchKind.PREFILL, [("w0", 300), ("w1", 212)])


@pytest.mark.parametrize(
    ("case", "tokens", "num_patient"),
    [
        # Decodes that could rest make a step no longer than 50 ms: 20 for the batch, 30 for 15.
        ({"patient": [9.0] * 20}, 30, 5),
        ({"patient": [9.0] * 5}, 30, 5),
        # Those that are due decode whatever the step takes: 60 ms for 20.
        ({"patient": [0.5] * 10}, 20, 10),
        # What patient ones have saved is not spent, though the urgent ones have lost theirs.
        ({"patient": [9.0] * 20, "saved": -900.0}, 30, 5),
        ({"patient": [9.0] * 20, "saved": 0.08}, 50, 5),
        # The others decode with them where none is urgent.
        ({"patient": [9.0] * 20, "decodes": 0}, 512 - 20, 20),
    ],
)
def test_unified_batch_lets_patient_responses_rest(compose, case, tokens, num_patient):
    decoding = [case.pop("saved", 0.0)] * case.pop("decodes", 10)
    _, picks, decodes, _ = compose("unified", decoding, begun=[2000], max_num_seqs=128, **case)
    assert sum(n for _, n in picks) == tokens
    assert len([i for i in decodes if i.startswith("p")]) == num_patient
    assert len(decodes) == len(decoding) + num_patient


@given(
    st.floats(-0.5, 3.0),
    st.integers(1, 30),
    st.lists(st.floats(-5.0, 20.0), max_size=40),
    st.lists(st.integers(1, 600), max_size=5),
    st.sampled_from((1.0, 1.5)),
)
def test_unified_step_with_patient_responses_keeps_to_what_urgent_ones_bear(
    make_step, saved_s, num_urgent, patient, waiting, error
):
    step = make_step(
        "unified",
        [saved_s] * num_urgent,
        waiting,
        patient=patient,
        latency=LinearLatency(0.02, error),
        max_num_seqs=128,
    )
    plan, inputs = step.plan(), step.inputs
    target_s, alone_s = inputs.decoding.min_tpot_s, error * inputs.decode_s
    even_s = min(alone_s + EVEN_RISE * target_s, EVEN_STEP * target_s)
    limit_s = max(STEP_TARGET * target_s, even_s) + SAVED_SHARE * max(0.0, saved_s)
    step_s = error * inputs.latency.predict(inputs.work(plan))
    assert step_s <= max(alone_s, min(limit_s, MAX_STEP_TPOTS * target_s)) + 1e-6
    assert {f"d{index}" for index in range(num_urgent)} <= set(plan.decodes)
