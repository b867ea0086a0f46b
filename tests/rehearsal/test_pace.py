"""Steps of a modelled device begin and end in time."""

from dataclasses import replace

import pytest

from macroserve.engine.rehearsal import Rehearsal
from macroserve.rehearsal.pace import NO_HOST, WORKER, Load, Pace
from macroserve.sim.hardware.devices import L20
from macroserve.sim.hardware.links import PCIE_4
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.hardware.step_time import StepTime

MODEL = replace(MODELS["CodeLlama-34B"], tensor_parallel=4)
EVEN = Rehearsal(device="L20-48GB", noise=0.0)
DECODES = Load([], 32, 32 * 1100)
PROMPT = Load([(2048, 0)], 0, 0)


def modelled_s(load: Load) -> float:
    times = StepTime(MODEL, L20, PCIE_4, NO_HOST)
    return times.seconds(load.prefills, load.num_decodes, load.decode_context)


@pytest.mark.parametrize("load", [DECODES, PROMPT, Load([(300, 700)], 8, 4000)])
def test_step_takes_the_modelled_time_after_the_worker(load: Load) -> None:
    step = Pace(MODEL, 1, EVEN).step(load, 10.0)
    num_sequences = load.num_decodes + len(load.prefills)
    assert step.start == pytest.approx(10.0 + WORKER.step_s + num_sequences * WORKER.sequence_s)
    assert step.end - step.start == pytest.approx(modelled_s(load))


def test_steps_given_in_time_follow_each_other_without_a_gap() -> None:
    pace = Pace(MODEL, 1, EVEN)
    first = pace.step(DECODES, 0.0)
    second = pace.step(PROMPT, first.start)
    assert (second.start, second.idle_s) == (first.end, 0.0)


def test_device_is_idle_until_a_step_that_comes_late() -> None:
    pace = Pace(MODEL, 1, EVEN)
    first = pace.step(DECODES, 0.0)
    second = pace.step(DECODES, first.end + 0.5)
    assert second.idle_s == pytest.approx(0.5 + WORKER.step_s + 32 * WORKER.sequence_s)


def test_stages_of_a_pipeline_work_on_two_batches_at_a_time() -> None:
    pace = Pace(MODEL, 2, EVEN)
    first, second = pace.step(DECODES, 0.0), pace.step(DECODES, 0.0)
    stage_s = modelled_s(DECODES) / 2
    assert second.start == pytest.approx(first.start + stage_s)
    assert second.end == pytest.approx(first.end + stage_s)
    assert first.end - first.start > 2 * stage_s, "hidden states are sent"


def test_scale_stretches_worker_and_steps() -> None:
    plain, slow = Pace(MODEL, 1, EVEN), Pace(MODEL, 1, even(scale=4.0))
    for load in (PROMPT, DECODES):
        one, four = plain.step(load, 0.0), slow.step(load, 0.0)
        assert (four.start, four.end) == pytest.approx((4 * one.start, 4 * one.end))


def even(**fields: float) -> Rehearsal:
    return Rehearsal(device=EVEN.device, noise=0.0, **fields)


def test_noise_varies_steps_by_its_share_and_repeats_with_its_seed() -> None:
    noisy = Rehearsal(device="L20-48GB", noise=0.02)

    def durations() -> list[float]:
        pace = Pace(MODEL, 1, noisy)
        steps = [pace.step(DECODES, 0.0) for _ in range(400)]
        return [step.end - step.start for step in steps]

    found = durations()
    assert found == durations()
    expected = modelled_s(DECODES)
    spread = sum((each / expected - 1) ** 2 for each in found) / len(found)
    assert spread**0.5 == pytest.approx(0.02, rel=0.15)


def test_step_that_waits_for_a_grammar_delays_the_next_one() -> None:
    pace = Pace(MODEL, 1, EVEN)
    first = pace.step(DECODES, 0.0)
    pace.hold(first, first.end - 0.001)
    assert pace.step(DECODES, 0.0).start == first.end, "the mask came in time"
    last = pace.step(DECODES, 0.0)
    pace.hold(last, last.end + 0.5)
    assert pace.step(DECODES, 0.0).start == last.end
