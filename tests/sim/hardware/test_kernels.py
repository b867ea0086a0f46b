"""Kernels' times compared to measurements, and to lower bounds."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.sim.hardware.devices import DEVICES, Device
from macroserve.sim.hardware.kernels import row_blocks
from macroserve_lab import kernel_fit as fit

SIZES = st.integers(1, 16384)
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)


@EACH_DEVICE
@given(m=SIZES, n=SIZES, k=SIZES)
def test_matrix_product_beats_neither_peak_nor_bandwidth(
    device: Device, m: int, n: int, k: int
) -> None:
    took_s = device.kernels.product.seconds(m, n, k, device.roof)
    assert took_s > 2 * m * n * k / device.roof.flops_per_s
    assert took_s > 2 * (m * k + n * k + m * n) / device.roof.bytes_per_s


@EACH_DEVICE
def test_matrix_product_of_few_tiles_leaves_multiprocessors_idle(device: Device) -> None:
    """Tiles that are too few to occupy all multiprocessors take more than their share of the
    time."""
    product, prompt = device.kernels.product, device.kernels.prompt_attention
    whole_s = product.seconds(1, 4096, 4096, device.roof) - product.launch_s
    part_s = product.seconds(1, 512, 512, device.roof) - product.launch_s
    assert part_s > 2 * whole_s / 64
    whole_s = prompt.seconds(128, 8192, 64, 64, 128, device.roof) - prompt.launch_s
    part_s = prompt.seconds(128, 8192, 8, 8, 128, device.roof) - prompt.launch_s
    assert part_s > 2 * whole_s / 8


@EACH_DEVICE
@given(tokens=st.integers(1, 8192), before=st.integers(0, 8192), more=st.integers(1, 512))
def test_attention_of_a_longer_prompt_takes_longer(
    device: Device, tokens: int, before: int, more: int
) -> None:
    attention = device.kernels.prompt_attention

    def seconds(tokens: int, before: int) -> float:
        return attention.seconds(tokens, before, 32, 8, 128, device.roof)

    assert seconds(tokens + more, before) > seconds(tokens, before)
    assert seconds(tokens, before + more) > seconds(tokens, before)


@EACH_DEVICE
@pytest.mark.parametrize("kv_heads", [8, 32])
@given(sequences=st.integers(1, 512), tokens=st.integers(1, 8192), more=st.integers(256, 4096))
def test_attention_over_a_longer_cache_takes_longer(
    device: Device, kv_heads: int, sequences: int, tokens: int, more: int
) -> None:
    attention = device.kernels.decode_attention

    def seconds(sequences: int, tokens: int) -> float:
        blocks = row_blocks(tokens)
        return attention.seconds(sequences, blocks, 32, kv_heads, 128, device.roof)

    cache_bytes = 2 * 2 * sequences * tokens * kv_heads * 128
    assert seconds(sequences, tokens) > cache_bytes / device.roof.bytes_per_s
    assert seconds(sequences, tokens + more) > seconds(sequences, tokens)
    assert seconds(2 * sequences, tokens) >= seconds(sequences, tokens)


TABLES = os.environ.get("MACROSERVE_KERNEL_TABLES", "")


@pytest.mark.skipif(not TABLES, reason="MACROSERVE_KERNEL_TABLES names no folder of tables")
@pytest.mark.parametrize("name", fit.TABLES)
def test_kernel_times_of_held_out_rows_are_predicted(name: str) -> None:
    device, folder = fit.TABLES[name], Path(TABLES)
    off: list[float] = []
    for kernel, read in (
        (device.kernels.product, fit.products),
        (device.kernels.prompt_attention, fit.prompts),
        (device.kernels.decode_attention, fit.decodes),
    ):
        table = read(folder, name)
        off.extend(fit.errors(kernel, table.part(fit.held_out(table)), device.roof))
    assert sorted(off)[len(off) // 2] <= 0.1
