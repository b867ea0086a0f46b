"""The strategy unified keeps the TPOT target on a machine whose steps vary more than predicted."""

from itertools import cycle
from math import exp
from random import Random

import pytest

from macroserve.core.latency import LatencyModel
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.results import AT_END
from macroserve.sim.simulation import single_cell
from macroserve_lab.arrivals import bursty

pytestmark = pytest.mark.simulation

TARGET_S = 0.1
RATE, DURATION_S = 6.0, 200.0


class WithoutError(LatencyModel):
    """A latency model that takes its predictions for exact."""

    @property
    def error_factor(self) -> float:
        return 1.0


def slow_stretches(random):
    """Return factors on the steps' times that vary by 30 %, over some two hundred steps."""
    keep, log, factors = 0.995, 0.0, list[float]()
    for _ in range(20_000):
        log = keep * log + random.gauss(0.0, 0.3 * (1 - keep**2) ** 0.5)
        factors.append(exp(log - 0.045))
    return factors


def stalls(random):
    """Return factors of which one in fifty is eight times the others."""
    return [8.0 if random.random() < 0.02 else 0.86 for _ in range(20_000)]


def even(random):
    return [random.gauss(1.0, 0.03) for _ in range(20_000)]


@pytest.fixture(scope="module")
def p90_and_attainment(make_config, make_latency, make_lengths):
    def serve(model, factors):
        truth, lengths = make_latency(), make_lengths(prompt=5.5, output=3.0)
        spec = InstanceSpec(
            make_config("unified"),
            lambda *batch: truth.predict(truth.work(*batch)),
            lambda: model(truth.model, truth.device),
            cycle(factors(Random(1))),
        )
        arrivals = bursty(RATE, 1.0, DURATION_S, lengths, Random(0))
        results = single_cell(spec, 1).serve(arrivals, num_before=300, stop=AT_END).results
        tpots_s = sorted(each.tpot_s for each in results)
        attained = sum(each.attained for each in results) / len(results)
        return tpots_s[int(0.9 * len(tpots_s))], attained

    return serve


@pytest.mark.parametrize("factors", [slow_stretches, stalls])
def test_unified_on_uneven_steps_keeps_tpot_by_the_error_of_its_predictions(
    p90_and_attainment, factors
):
    without, attained_without = p90_and_attainment(WithoutError, factors)
    p90_s, attained = p90_and_attainment(LatencyModel, factors)
    assert p90_s < 0.975 * TARGET_S < without
    assert attained > attained_without + 0.01


def test_unified_on_even_steps_loses_nothing_by_the_error_of_its_predictions(p90_and_attainment):
    _, attained_without = p90_and_attainment(WithoutError, even)
    _, attained = p90_and_attainment(LatencyModel, even)
    assert attained > attained_without - 0.01
