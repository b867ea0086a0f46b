"""SRTF and FastServe: running and preempted requests."""

from dataclasses import replace

import pytest

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.request import Request
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import Sequence
from macroserve.sim.results import AT_END
from macroserve_lab.papers.econoserve.cases import (
    FASTSERVE,
    MODELS,
    SRTF,
    TRACES,
    Variant,
    experiment,
)
from macroserve_lab.papers.econoserve.preemptive import NUM_LEVELS, Queues

TOKEN_S = 1 / 64
"""A power of two, of which sums are exact."""


class _LinearLatency:
    """A latency model under which a token of a prompt takes as long as an iteration of one."""

    def prefill_s(self, num_tokens: int) -> float:
        return TOKEN_S * num_tokens


def _scheduler(variant: Variant, seats: int = 2) -> InstanceScheduler:
    scenario = experiment(MODELS[0], TRACES[1], variant).scenario
    spec = scenario.cluster.instance_spec(scenario.strategy, scenario.slo)
    return InstanceScheduler(replace(spec.config, max_num_seqs=seats), spec.latency())


def _add(scheduler: InstanceScheduler, name: str, at_s: float, expected: int, prompt: int = 100):
    slo = scheduler.config.slo
    request = Request(name, at_s, prompt, 1000, slo, expected_tokens=expected)
    assert scheduler.add_request(request, at_s) is None


def _run(scheduler: InstanceScheduler, now: float) -> Batch:
    """Run one iteration, in which each prefill and each decode emits a token."""
    batch = scheduler.schedule(now)
    prefilled = {each.request_id: each.num_tokens for each in batch.prefills}
    emitted = {
        name: 1
        for name, num in prefilled.items()
        if num == scheduler.sequences[name].num_to_prefill
    }
    decoded = 1 if batch.decodes else 0
    scheduler.update(batch, BatchResult(0.02, prefilled, emitted, decoded=decoded), now + 0.02)
    return batch


def _begun(batch: Batch) -> list[str]:
    return [each.request_id for each in batch.prefills]


def test_srtf_begins_the_shortest_and_preempts_the_longest_for_a_shorter_one() -> None:
    scheduler = _scheduler(SRTF)
    for name, expected in (("long", 300), ("middle", 100), ("short", 20)):
        _add(scheduler, name, 0.0, expected)
    assert _begun(_run(scheduler, 1.0)) == ["short", "middle"]
    _add(scheduler, "newcomer", 1.01, 50)
    batch = _run(scheduler, 2.0)
    assert (batch.preempted, batch.decodes) == (("middle",), ("short",))
    assert _begun(batch) == ["newcomer"]


def test_srtf_compares_what_is_left_and_not_the_whole_length() -> None:
    scheduler = _scheduler(SRTF, seats=1)
    _add(scheduler, "first", 0.0, 60)
    for step in range(21):
        _run(scheduler, float(step))
    _add(scheduler, "second", 30.0, 50)  # 39 tokens are left of the first
    batch = _run(scheduler, 31.0)
    assert (batch.decodes, batch.preempted) == (("first",), ())


def test_preempted_request_computes_its_tokens_again_and_goes_on() -> None:
    scheduler = _scheduler(SRTF, seats=1)
    _add(scheduler, "long", 0.0, 300)
    for step in range(5):
        _run(scheduler, float(step))
    _add(scheduler, "short", 6.0, 10)
    assert _run(scheduler, 6.0).preempted == ("long",)
    scheduler.finish("short")
    (again,) = _run(scheduler, 7.0).prefills
    assert (again.request_id, again.num_tokens) == ("long", 105)


@pytest.mark.parametrize(
    ("prompt", "num_emitted", "level"),
    [
        (1, 0, 0),  # A prefill of one iteration fits the first quantum.
        (2, 0, 1),  # A longer one skips the queues with shorter quanta,
        (5, 0, 3),
        (8, 0, 3),
        (9, 0, 4),  # to the last if none is long enough.
        (1, 1, 1),  # The first token uses up the quantum of one iteration,
        (1, 2, 1),
        (1, 3, 2),  # two more that of two, and so on.
        (1, 6, 2),
        (1, 7, 3),
        (1, 15, 4),
        (5, 3, 3),  # A quantum of eight holds a prefill of five and two more tokens,
        (5, 4, 4),  # not three.
        (1, 900, 4),
    ],
)
def test_level_skips_short_quanta_and_goes_down_as_they_are_used(prompt, num_emitted, level):
    request = Request("r", 0.0, prompt, 1000, experiment(MODELS[0], TRACES[1], SRTF).scenario.slo)
    seq = Sequence(request, 0, 0.0, 500, 0.1, 0.1, 0.1)
    seq.num_emitted = num_emitted
    assert Queues(_LinearLatency()).level(seq) == level < NUM_LEVELS  # type: ignore[arg-type]


def test_fastserve_lets_a_newcomer_take_the_place_of_a_long_response() -> None:
    scheduler = _scheduler(FASTSERVE)
    _add(scheduler, "early", 0.0, 10)
    _add(scheduler, "late", 0.1, 10)
    for step in range(40):  # Both go down to the last queue, whatever their expected lengths.
        assert not _run(scheduler, 1.0 + step).preempted
    _add(scheduler, "newcomer", 60.0, 900)
    batch = _run(scheduler, 60.0)
    assert (batch.preempted, batch.decodes) == (("late",), ("early",))
    assert _begun(batch) == ["newcomer"]


def test_fastserve_returns_the_place_once_the_newcomer_is_as_low() -> None:
    scheduler = _scheduler(FASTSERVE, seats=1)
    _add(scheduler, "early", 0.0, 500)
    for step in range(40):
        _run(scheduler, 1.0 + step)
    _add(scheduler, "newcomer", 60.0, 500)
    preempted = [name for step in range(60) for name in _run(scheduler, 60.0 + step).preempted]
    assert preempted == ["early", "newcomer"]
    assert "early" in scheduler.running.decoding


@pytest.mark.parametrize("variant", [SRTF, FASTSERVE], ids=["srtf", "fastserve"])
def test_preemptive_baseline_ends_all_requests_within_its_seats(variant: Variant) -> None:
    outcome = experiment(MODELS[0], TRACES[1], variant).serve(1.0, 10.0, stop=AT_END)
    assert outcome.requests == len(outcome.results) > 0
    assert outcome.kv_use < 0.25
