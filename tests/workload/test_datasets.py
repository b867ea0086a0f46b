"""Drawn lengths compared to the papers' statistics."""

from random import Random
from statistics import mean, median

import pytest

from macroserve.workload.datasets import AZURE_CODE, AZURE_CONVERSATIONS, WORKLOADS, Workload
from macroserve.workload.lengths import Lognormal


@pytest.mark.parametrize(
    "workload",
    [*WORKLOADS.values(), AZURE_CONVERSATIONS, AZURE_CODE],
    ids=lambda workload: workload.name,
)
def test_workload_lengths_have_the_published_means_and_medians(workload: Workload) -> None:
    for fit in (workload.prompt, workload.output):
        random = Random(1)
        drawn = [fit.draw(random) for _ in range(50_000)]
        assert mean(drawn) == pytest.approx(fit.mean, rel=0.03)
        assert median(drawn) == pytest.approx(fit.median, rel=0.03)
        assert fit.most is not None
        assert 1 <= min(drawn) <= max(drawn) <= fit.most


def test_workload_lengths_with_equal_seeds_are_equal() -> None:
    workload = WORKLOADS["ShareGPT"]
    assert workload.lengths(Random(3)) == workload.lengths(Random(3))
    assert workload.lengths(Random(3)) != workload.lengths(Random(4))


@pytest.mark.parametrize(
    ("mean", "median", "most"),
    [(100, 200, 4096), (4000, 100, 4096), (10, 0, 100), (50, 100, 100)],
)
def test_lognormal_with_impossible_figures_raises(mean: float, median: float, most: int) -> None:
    with pytest.raises(ValueError, match=r"mean|median"):
        Lognormal(mean, median, most)
