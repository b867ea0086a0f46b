"""The benchmark runs on shapes that an interpreter manages."""

import pytest
import torch

from macroserve.kernels.bench import (
    Layer,
    LayerShape,
    Operation,
    Rates,
    attending,
    figure,
    line,
    moving,
)

TINY = LayerShape(num_heads=2, head_size=64)


@pytest.mark.parametrize("rotary", [False, True])
def test_bench_cases_all_run(device: torch.device, rotary: bool) -> None:
    layer = Layer(TINY, 3, 40, device, rotary=rotary)
    cases = [*attending(layer), *moving(TINY, 50, device)]
    for case in cases:
        layer.out.fill_(torch.nan)
        case.run()
        assert case.num_bytes > 0
        if case.name.startswith("attend"):
            assert layer.out.isfinite().all(), case.name
    assert len({case.name for case in cases}) == len(cases)


def test_bench_flops_of_a_case_are_those_of_its_products(device: torch.device) -> None:
    """The case has one request with 40 tokens and 2 heads of 64."""
    (plain,) = attending(Layer(TINY, 1, 40, device))
    absorbing, scoring = 2 * 2 * 64 * 128, 2 * 2 * 40 * 128
    assert plain.num_flops == 2 * absorbing + 2 * scoring
    assert plain.num_bytes == 2 * (40 * 128 + 2 * 128**2)


@pytest.mark.parametrize(
    ("num_bytes", "num_flops", "bound_s"), [(200.0, 10.0, 2.0), (100.0, 50.0, 5.0)]
)
def test_bench_bound_is_the_longer_of_memory_and_compute(
    num_bytes: float, num_flops: float, bound_s: float
) -> None:
    case = Operation("it", lambda: None, num_bytes, num_flops)
    found = figure(case, Rates(bytes_per_s=100.0, flops_per_s=10.0), time_s=10.0)
    assert (found.bound_s, found.share) == (bound_s, bound_s / 10)
    assert line(found).endswith(f"{found.share:6.1%} of it")
