"""Step times compared to published figures, and to each other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.sim.hardware.devices import A100_40GB, A800, L20, Device
from macroserve.sim.hardware.host import Host
from macroserve.sim.hardware.links import NVLINK_3, PCIE_4, Link
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.hardware.step_time import StepTime


def of(model: str, ranks: int, device: Device, link: Link = PCIE_4) -> StepTime:
    return StepTime(replace(MODELS[model], tensor_parallel=ranks), device, link)


@pytest.mark.parametrize(
    ("model", "tokens_per_s"), [("Llama-30B", 6584.6 / 2), ("CodeLlama-34B", 6838.92 / 2)]
)
def test_l20_prefill_rate_equals_the_measurement_of_ecoserve(
    model: str, tokens_per_s: float
) -> None:
    """EcoServe measured two instances of four devices on a node (EcoServe, table 3)."""
    step_s = of(model, 4, L20).seconds([(2048, 0), (2048, 0)], 0, 0)
    assert 4096 / step_s == pytest.approx(tokens_per_s, rel=0.1)


def test_step_without_work_takes_no_time() -> None:
    assert of("OPT-13B", 1, A100_40GB).seconds([], 0, 0) == 0


BATCHES = st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 2048)), max_size=3)


@given(prefills=BATCHES, decodes=st.integers(0, 128), each=st.integers(1, 2048))
def test_step_with_more_work_takes_longer(
    prefills: list[tuple[int, int]], decodes: int, each: int
) -> None:
    step = of("CodeLlama-34B", 2, A800)
    took_s = step.seconds(prefills, decodes, decodes * each)
    assert step.seconds([*prefills, (64, 0)], decodes, decodes * each) > took_s
    assert step.seconds(prefills, decodes + 8, (decodes + 8) * each) > took_s


def test_step_reads_all_weights_at_least_once() -> None:
    shape = MODELS["OPT-13B"]
    took_s = of("OPT-13B", 1, A100_40GB).seconds([], 1, 1)
    weights_s = shape.weight_bytes / A100_40GB.roof.bytes_per_s
    assert weights_s < took_s < 2 * weights_s


@pytest.mark.parametrize("ranks", [1, 4])
def test_vocabulary_is_shared_by_the_ranks(ranks: int) -> None:
    few, many = (
        replace(MODELS["OPT-13B"], vocab_size=size, tensor_parallel=ranks) for size in (8192, 65536)
    )
    more_s = StepTime(many, A800, NVLINK_3).seconds([], 8, 8)
    more_s -= StepTime(few, A800, NVLINK_3).seconds([], 8, 8)
    of_few_s, of_many_s = (
        A800.kernels.product.seconds(8, each.vocab_size // ranks, each.hidden_size, A800.roof)
        for each in (few, many)
    )
    assert more_s == pytest.approx(of_many_s - of_few_s)


def test_step_over_slower_links_or_hosts_takes_longer() -> None:
    shape = replace(MODELS["Llama-30B"], tensor_parallel=4)
    fast = StepTime(shape, L20, NVLINK_3, Host(0, 0)).seconds([(1024, 0)], 0, 0)
    slow = StepTime(shape, L20, PCIE_4, Host(0, 0)).seconds([(1024, 0)], 0, 0)
    hidden_bytes = 2 * 1024 * shape.hidden_size
    reduces_s = (
        2 * shape.num_layers * link.all_reduce_s(hidden_bytes, 4) for link in (PCIE_4, NVLINK_3)
    )
    assert slow - fast == pytest.approx(next(reduces_s) - next(reduces_s))
    hosted = StepTime(shape, L20, PCIE_4, Host(0.01, 0.001)).seconds([(1024, 0)], 0, 0)
    assert hosted - slow == pytest.approx(0.011)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_step_scheduled_ahead_takes_the_longer_of_device_and_host(share: float) -> None:
    shape = MODELS["Mistral-7B"]
    device_s = StepTime(shape, L20, PCIE_4, Host(0, 0)).seconds([], 64, 32000)
    host = Host(share * device_s / 2, share * device_s / 128, ahead=True)
    took_s = StepTime(shape, L20, PCIE_4, host).seconds([], 64, 32000)
    assert took_s == pytest.approx(max(1.0, share) * device_s)


def test_mixed_step_saves_a_read_of_the_weights() -> None:
    step = of("Llama-30B", 4, L20)
    apart_s = step.seconds([(512, 0)], 0, 0) + step.seconds([], 64, 32000)
    assert 0.7 * apart_s < step.seconds([(512, 0)], 64, 32000) < apart_s


@pytest.mark.parametrize("ranks", [1, 4])
def test_hidden_states_cost_their_projections_only_with_rotary_keys(ranks: int) -> None:
    shape = replace(MODELS["OPT-13B"], tensor_parallel=ranks)
    added, turned = (StepTime(s, A800, PCIE_4) for s in (shape, replace(shape, rotary=True)))
    plain_s = added.seconds([], 16, 16_000)
    assert plain_s == turned.seconds([], 16, 16_000)
    # Multiplications for a token and layer: its keys and values, against two for each head.
    assert turned.seconds([], 16, 16_000, 16_000) - plain_s > 5 * (
        added.seconds([], 16, 16_000, 16_000) - plain_s
    )


def test_hidden_states_are_gathered_by_the_ranks() -> None:
    shape = replace(MODELS["Llama-30B"], tensor_parallel=4)
    fast, slow = (
        StepTime(shape, L20, link).seconds([], 16, 16_000, 16_000)
        - StepTime(shape, L20, link).seconds([], 16, 16_000)
        for link in (NVLINK_3, PCIE_4)
    )
    hidden_bytes = 2 * 16_000 * shape.hidden_size
    gathers_s = (
        shape.num_layers * link.all_gather_s(hidden_bytes, 4) for link in (NVLINK_3, PCIE_4)
    )
    assert fast - slow == pytest.approx(next(gathers_s) - next(gathers_s))


def test_rho_is_what_a_hidden_token_adds_to_a_step() -> None:
    step = of("OPT-30B", 2, A100_40GB, NVLINK_3)
    added_s = step.seconds([], 32, 32_000, 16_000) - step.seconds([], 32, 32_000)
    assert added_s / 16_000 == pytest.approx(step.rebuild_s_per_token, rel=0.1)
