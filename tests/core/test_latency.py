"""The latency model has formulas, their inversion, and a fit."""

import json
import random
from dataclasses import replace
from math import inf, nan
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shapes import CODELLAMA_34B, LLAMA_30B, OPT_13B

from macroserve.core.latency import (
    FEWEST_GROUPS,
    FLOOR_S,
    GROUP_BATCHES,
    MAX_ERROR_FACTOR,
    NUM_GROUPS,
    PRIOR,
    LatencyModel,
    StepError,
    Work,
)
from macroserve.core.shapes import DeviceShape, ModelShape
from macroserve.sim.hardware.models import MODELS

A100 = DeviceShape(flops_per_s=312e12, bytes_per_s=2e12)

coefficient = st.floats(0.0, 3.0)
coefficients = st.tuples(coefficient, coefficient, coefficient, coefficient, st.floats(0, 0.01))


def test_work_of_a_batch_follows_the_model_shape():
    """A parameter costs two flops per token, attention comes on top, and weights are read once."""
    latency = LatencyModel(LLAMA_30B, A100)
    parameters = LLAMA_30B.active_parameters
    work = latency.work(((1000, 0),))
    attention = 4 * 60 * 6656 * 1000 * 500
    assert work.flops == pytest.approx(
        2 * parameters * 1000 + 2 * LLAMA_30B.head_parameters + attention
    )
    decode = latency.work((), num_decodes=32, decode_context=32 * 700)
    kv = 32 * 700 * LLAMA_30B.kv_bytes_per_token
    assert decode.bytes == pytest.approx(2 * (parameters + 6656 * 32000) + kv, rel=0.01)


def test_work_under_tensor_parallelism_is_shared_by_the_ranks():
    model = ModelShape(60, 6656, 52, 52, 128, 17920, 32000, tensor_parallel=4)
    batch = (((700, 100), (50, 0)), 20, 9000)
    whole, rank = (LatencyModel(m, A100).work(*batch) for m in (LLAMA_30B, model))
    assert rank.flops == pytest.approx(whole.flops / 4)
    assert rank.bytes == pytest.approx(whole.bytes / 4)


def test_work_of_a_chunk_after_a_context_is_larger():
    latency = LatencyModel(OPT_13B, A100)
    assert latency.prefill_s(512, context=8000) > 1.05 * latency.prefill_s(512)


def test_prediction_for_a_small_batch_is_the_time_of_reading_weights():
    """Short prompts would look free without this lower bound."""
    latency = LatencyModel(LLAMA_30B, A100)
    weights_s = LLAMA_30B.weight_bytes / A100.bytes_per_s
    assert latency.prefill_s(1) > weights_s
    assert latency.prefill_s(20) < 1.1 * latency.prefill_s(1)
    assert latency.batched_prefill_s(20, 2048) < 0.2 * latency.prefill_s(20)
    assert latency.batched_prefill_s(2048, 2048) == pytest.approx(latency.prefill_s(2048))


def test_prediction_for_no_work_is_zero():
    latency = LatencyModel(OPT_13B, A100)
    assert latency.work() == Work(0.0, 0.0)
    assert latency.predict(latency.work()) == 0.0


@given(
    coefficients,
    st.integers(0, 64),
    st.integers(0, 4000),
    st.integers(1, 4000),
    st.integers(0, 3000),
)
def test_prediction_with_added_work_never_falls(numbers, decodes, context, tokens, before):
    latency = LatencyModel(OPT_13B, A100, numbers)
    less = latency.predict(latency.work(((tokens, before),), decodes, decodes * context))
    for more in (
        latency.work(((tokens + 100, before),), decodes, decodes * context),
        latency.work(((tokens, before + 100),), decodes, decodes * context),
        latency.work(((tokens, before),), decodes + 1, decodes * context + context),
        latency.work(((tokens, before),), decodes, decodes * context, num_drafted=2 * decodes),
    ):
        assert latency.predict(more) >= less >= FLOOR_S


@given(
    coefficients,
    st.floats(-0.1, 1.5),
    st.integers(1, 8192),
    st.integers(0, 4000),
    st.integers(1, 64),
    st.integers(0, 60000),
    st.floats(0, 256),
)
def test_prefill_tokens_within_a_budget_are_the_most_that_fit(
    numbers, budget_s, limit, context, decodes, decode_context, drafted
):
    latency = LatencyModel(CODELLAMA_34B, A100, numbers)

    def step_s(tokens):
        work = latency.work(((tokens, context),), decodes, decode_context, 0, drafted)
        return latency.predict(work)

    beside = (decodes, decode_context, drafted)
    tokens = latency.prefill_tokens_within(budget_s, limit, context, *beside)
    assert 0 <= tokens <= limit
    if tokens:
        assert step_s(tokens) <= max(budget_s, FLOOR_S) * (1 + 1e-9)
    if tokens < limit:
        assert step_s(tokens + 1) >= budget_s * (1 - 1e-9)


def test_prefill_tokens_within_an_infinite_budget_are_all():
    assert LatencyModel(OPT_13B, A100).prefill_tokens_within(float("inf"), 2048) == 2048


class Device:
    """The device's true times have another form than the model: efficiencies per resource, overlap,
    noise."""

    def __init__(self, seed, compute=0.55, memory=0.8, overhead_s=0.004, noise=0.03):
        self.random = random.Random(seed)
        self.flops_per_s = compute * A100.flops_per_s
        self.bytes_per_s = memory * A100.bytes_per_s
        self.overhead_s, self.noise = overhead_s, noise

    def run(self, work):
        compute_s, memory_s = work.flops / self.flops_per_s, work.bytes / self.bytes_per_s
        step_s = max(compute_s, memory_s) + 0.1 * min(compute_s, memory_s) + self.overhead_s
        return step_s * self.random.gauss(1, self.noise)

    def batch(self, latency):
        kind = self.random.choice(("prefill", "decode", "decode", "mixed"))
        decodes = 0 if kind == "prefill" else self.random.randrange(1, 100)
        prefills = []
        if kind != "decode":
            for _ in range(self.random.randrange(1, 4)):
                tokens = int(self.random.lognormvariate(5.5, 1)) + 1
                prefills.append((tokens, self.random.choice((0, 0, 900))))
        return latency.work(prefills, decodes, decodes * self.random.randrange(50, 1500))


def median_error(latency, device, batches=300):
    errors = []
    for _ in range(batches):
        work = device.batch(latency)
        truth_s = device.run(work)
        errors.append(abs(latency.predict(work) - truth_s) / truth_s)
    return median(errors)


@pytest.mark.parametrize("model", [LLAMA_30B, CODELLAMA_34B, OPT_13B])
@pytest.mark.parametrize("slower", [1.0, 12.0])
def test_latency_model_after_batches_predicts_within_ten_percent(model, slower):
    """The error is below 10 % after a few minutes, wherever the model starts (Ascendra, section
    4.1)."""
    device = Device(1, compute=0.55 / slower, memory=0.8 / slower)
    latency = LatencyModel(model, A100)
    before = median_error(latency, device)
    for _ in range(400):
        work = device.batch(latency)
        latency.observe(work, device.run(work))
    after = median_error(latency, device)
    assert after < 0.10
    assert after < before


def test_latency_model_of_a_changing_device_follows_it():
    latency, device = LatencyModel(OPT_13B, A100), Device(2)
    for _ in range(1500):
        work = device.batch(latency)
        latency.observe(work, device.run(work))
    throttled = Device(3, compute=0.3, memory=0.5)
    assert median_error(latency, throttled) > 0.2
    for _ in range(1500):
        work = throttled.batch(latency)
        latency.observe(work, throttled.run(work))
    assert median_error(latency, throttled) < 0.10


@pytest.mark.parametrize("factor", [0.01, 0.3, 3.0, 30.0, 500.0])
def test_latency_model_with_outliers_stays_accurate(factor):
    """An outlier is one batch in ten: a stall of the machine, or a prompt found in a prefix
    cache."""
    latency, device = LatencyModel(OPT_13B, A100), Device(4)
    for index in range(1000):
        work = device.batch(latency)
        latency.observe(work, device.run(work) * (factor if index % 10 == 9 else 1.0))
    assert median_error(latency, device) < 0.06


def test_latency_model_after_many_decodes_remembers_prefills():
    latency, device = LatencyModel(OPT_13B, A100), Device(5, compute=0.1)
    for _ in range(400):
        work = device.batch(latency)
        latency.observe(work, device.run(work))
    prefill = latency.work(((2000, 0),))
    before_s = latency.predict(prefill)
    for index in range(20_000):
        decode = latency.work((), 10 + index % 50, 8000 + 300 * (index % 40))
        latency.observe(decode, device.run(decode))
    assert latency.predict(prefill) == pytest.approx(before_s, rel=0.1)


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0, float("inf"), float("nan")])
def test_latency_model_ignores_invalid_times(elapsed_s):
    latency = LatencyModel(OPT_13B, A100)
    latency.observe(latency.work(((100, 0),)), elapsed_s)
    latency.observe(Work(0.0, 0.0), 0.1)
    assert latency.coefficients == PRIOR


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 3000), st.floats(1e-6, 100))))
def test_predictions_after_any_observations_stay_finite_and_positive(observed):
    latency = LatencyModel(CODELLAMA_34B, A100)
    for decodes, tokens, elapsed_s in observed:
        prefills = ((tokens, 0),) if tokens else ()
        latency.observe(latency.work(prefills, decodes, 500 * decodes), elapsed_s)
        assert all(c >= 0 for c in latency.coefficients)
        assert FLOOR_S <= latency.prefill_s(100) < 1e4


def test_latency_model_from_coefficients_predicts_the_same():
    latency, device = LatencyModel(OPT_13B, A100), Device(6)
    for _ in range(200):
        work = device.batch(latency)
        latency.observe(work, device.run(work))
    stored = json.loads(json.dumps(latency.coefficients))
    again = LatencyModel(OPT_13B, A100, stored)
    assert again.coefficients == latency.coefficients
    assert again.prefill_s(700) == latency.prefill_s(700)


@pytest.mark.parametrize(
    "numbers", [(1.0,) * 4, (1.0, -0.1, 0, 0, 0), (1.0, float("nan"), 0, 0, 0)]
)
def test_latency_model_from_invalid_coefficients_is_refused(numbers):
    with pytest.raises(ValueError, match="five coefficients"):
        LatencyModel(OPT_13B, A100, numbers)


def test_rebuild_time_with_a_measurement_equals_it():
    by_formula, measured = LatencyModel(OPT_13B, A100), LatencyModel(OPT_13B, A100)
    measured.rebuild_s_per_token = 2e-6
    plain = by_formula.work((), 8, 8000)
    assert measured.work((), 8, 8000) == plain
    assert by_formula.predict(by_formula.work((), 8, 8000, 5000)) > by_formula.predict(plain)
    assert by_formula.rebuild_s(5000) > 0
    slower_s = measured.predict(measured.work((), 8, 8000, 5000)) - measured.predict(plain)
    assert slower_s == pytest.approx(5000 * 2e-6) == measured.rebuild_s(5000)


def test_latency_model_excludes_rebuild_time_from_its_fit():
    """Batches with hidden states teach the same as those without."""
    plain, hidden = LatencyModel(OPT_13B, A100), LatencyModel(OPT_13B, A100)
    hidden.rebuild_s_per_token = 2e-6
    for decodes in range(1, 65):
        context = decodes * 700
        plain.observe(plain.work((), decodes, context), 0.02 + 1e-4 * decodes)
        work = hidden.work((), decodes, context, context // 2)
        hidden.observe(work, 0.02 + 1e-4 * decodes + 1e-6 * context)
    assert hidden.coefficients == pytest.approx(plain.coefficients)


@pytest.mark.parametrize(("slow", "factor"), [(1.0, 1.0), (1.4, 1.17)])
def test_error_factor_is_of_slow_stretches_beyond_what_the_model_learned(slow, factor):
    """The model learns the mean of fast and slow stretches of 16 batches."""
    latency = LatencyModel(OPT_13B, A100)
    truth = LatencyModel(OPT_13B, A100, (0.5, 0.8, 0.1, 0.1, 0.002))
    batches = random.Random(1)
    for index in range(2000):
        work = latency.work(((batches.randrange(1, 600), 0),), 20, batches.randrange(1000, 9000))
        latency.observe(work, truth.predict(work) * (slow if index // 16 % 2 else 1.0))
    assert latency.error_factor == pytest.approx(factor, abs=0.05)


def test_work_of_experts_reads_those_that_a_batch_uses():
    model = MODELS["Mixtral-8x7B"]
    latency = LatencyModel(model, A100)
    one, many = (latency.work(((tokens, 0),)).bytes for tokens in (1, 512))
    active = 2 * (model.active_parameters + model.head_parameters)
    assert one == pytest.approx(active, rel=0.01)
    assert many > 2 * (model.parameters + model.head_parameters) > 3 * one
    flops = 2 * (model.active_parameters + model.head_parameters)
    assert latency.work(((1, 0),)).flops == pytest.approx(flops, rel=0.01)


def test_work_of_latent_attention_reads_one_vector_for_each_token():
    model = MODELS["DeepSeek-V3"]
    latency = LatencyModel(model, A100)
    less, more = (latency.work((), 8, 8 * context) for context in (1000, 5000))
    assert more.bytes - less.bytes == pytest.approx(8 * 4000 * 70_272)
    # 128 heads multiply 576 elements for a score, and 512 to weigh the values.
    assert more.flops - less.flops == pytest.approx(8 * 4000 * 61 * 2 * 128 * (576 + 512))


def test_work_of_latent_attention_under_tensor_parallelism_reads_the_vector_on_each_rank():
    model = replace(MODELS["DeepSeek-V3"], tensor_parallel=8)
    latency = LatencyModel(model, A100)
    less, more = (latency.work((), 8, 8 * context).bytes for context in (1000, 5000))
    assert more - less == pytest.approx(8 * 4000 * 70_272)


def test_work_of_layers_with_a_window_does_not_grow_beyond_it():
    model = MODELS["Gemma3-27B"]
    latency = LatencyModel(model, A100)
    less, more = (latency.work((), 8, 8 * context) for context in (2000, 6000))
    assert more.bytes - less.bytes == pytest.approx(8 * 4000 * 2 * 10 * 16 * 128 * 2)
    less, more = (latency.work((), 8, 8 * context) for context in (200, 600))
    assert more.bytes - less.bytes == pytest.approx(8 * 400 * model.kv_bytes_per_token)


@given(
    st.sampled_from(["Mixtral-8x7B", "DeepSeek-V3", "Gemma3-27B", "gpt-oss-20b"]),
    st.floats(0.001, 1.0),
    st.integers(1, 8192),
    st.integers(0, 20_000),
    st.integers(0, 64),
    st.integers(1, 4000),
)
def test_prefill_within_a_budget_keeps_it_whatever_the_model(
    name, budget_s, limit, context, decodes, each
):
    latency = LatencyModel(MODELS[name], A100)
    tokens = latency.prefill_tokens_within(budget_s, limit, context, decodes, decodes * each)
    if tokens:
        took_s = latency.predict(latency.work(((tokens, context),), decodes, decodes * each))
        assert took_s <= budget_s * (1 + 1e-9)


ratios = st.floats(0.1, 10.0)


def observed(error: StepError, *groups: float) -> StepError:
    """Add groups of batches that all take the group's multiple of a predicted 50 ms."""
    for ratio in groups:
        for _ in range(GROUP_BATCHES):
            error.observe(0.05, 0.05 * ratio)
    return error


def test_step_error_before_enough_groups_is_one():
    error = observed(StepError(), *[1.5] * (FEWEST_GROUPS - 1))
    assert error.factor == 1.0
    assert observed(error, 1.5).factor == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("slow", "factor"), [(1, 1.0), (FEWEST_GROUPS // 10, 1.0), (FEWEST_GROUPS // 10 + 1, 1.5)]
)
def test_step_error_is_what_all_but_a_tenth_of_the_groups_keep(slow, factor):
    error = observed(StepError(), *[1.5] * slow, *[1.0] * (FEWEST_GROUPS - slow))
    assert error.factor == pytest.approx(factor)


def test_step_error_forgets_groups_outside_the_window():
    error = observed(StepError(), *[1.5] * NUM_GROUPS)
    assert observed(error, *[1.1] * (NUM_GROUPS // 2)).factor == pytest.approx(1.5)
    assert observed(error, *[1.1] * (NUM_GROUPS // 2)).factor == pytest.approx(1.1)


def test_step_error_of_errors_that_cancel_out_within_a_group_is_one():
    error = StepError()
    for _ in range(FEWEST_GROUPS * GROUP_BATCHES // 2):
        error.observe(0.05, 0.075)
        error.observe(0.05, 0.025)
    assert error.factor == pytest.approx(1.0)


def test_step_error_counts_a_stall_by_its_time():
    """A group with one batch of nine times its time takes half as long again."""
    error = StepError()
    for _ in range(FEWEST_GROUPS):
        error.observe(0.05, 0.45)
        for _ in range(GROUP_BATCHES - 1):
            error.observe(0.05, 0.05)
    assert error.factor == pytest.approx(1.5)


@given(st.lists(ratios, min_size=FEWEST_GROUPS, max_size=3 * NUM_GROUPS))
def test_step_error_is_kept_by_nine_in_ten_of_the_remembered_groups(groups):
    factor = observed(StepError(), *groups).factor
    assert 1.0 <= factor <= MAX_ERROR_FACTOR
    latest = groups[-NUM_GROUPS:]
    num_above = sum(ratio > factor * (1 + 1e-9) for ratio in latest)
    if factor < MAX_ERROR_FACTOR:
        assert num_above <= len(latest) / 10
    if factor > 1.0:
        assert sum(ratio >= factor * (1 - 1e-9) for ratio in latest) > len(latest) / 10


@given(st.lists(ratios, min_size=FEWEST_GROUPS, max_size=NUM_GROUPS), st.data())
def test_step_error_never_falls_when_a_group_takes_longer(groups, data):
    index = data.draw(st.integers(0, len(groups) - 1))
    longer = [*groups[:index], groups[index] * 1.5, *groups[index + 1 :]]
    assert observed(StepError(), *longer).factor >= observed(StepError(), *groups).factor


@pytest.mark.parametrize("times", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (nan, 1.0), (1.0, inf)])
def test_step_error_ignores_times_that_are_not_positive_and_finite(times):
    error = observed(StepError(), *[1.2] * FEWEST_GROUPS)
    for _ in range(FEWEST_GROUPS * GROUP_BATCHES):
        error.observe(*times)
    assert error.factor == pytest.approx(1.2)
