"""Hidden states are written to their slots."""

import pytest
import torch
from support.paged import DTYPES, MULTI_HEAD, SHAPES, Heads, Paged

from macroserve.kernels.pool import hidden_view
from macroserve.kernels.write_hidden import write_hidden, write_hidden_reference


def check(paged: Paged, slots: torch.Tensor) -> None:
    size = paged.heads.hidden_size
    # As a model hands it over: the rows of something wider.
    x = paged.noise(len(slots), 2 * size)[:, :size]
    found, expected = paged.pool, paged.pool.clone()
    write_hidden(x, hidden_view(found, size), slots)
    write_hidden_reference(x, hidden_view(expected, size), slots)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_hidden_in_every_dtype_equals_reference(
    device: torch.device, dtype: torch.dtype
) -> None:
    paged = Paged(MULTI_HEAD, dtype, device)
    check(paged, paged.slots(30, paged.hidden.shape[1]))


@pytest.mark.parametrize(("heads", "block_size", "seq_lens"), SHAPES.values(), ids=SHAPES)
def test_write_hidden_in_every_shape_equals_reference(
    device: torch.device, heads: Heads, block_size: int, seq_lens: tuple[int, ...]
) -> None:
    paged = Paged(heads, torch.float32, device, block_size, seq_lens)
    check(paged, paged.slots(5, paged.hidden.shape[1]))


@pytest.mark.parametrize("kept", ["", "-", "x", "x-", "-x--xx-x"])
def test_write_hidden_with_negative_slots_skips_rows(device: torch.device, kept: str) -> None:
    paged = Paged(MULTI_HEAD, torch.float32, device)
    slots = paged.slots(len(kept), paged.hidden.shape[1])
    slots[[each == "-" for each in kept]] = -1
    check(paged, slots)
