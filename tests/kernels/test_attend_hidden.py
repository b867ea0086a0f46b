"""Attention over hidden states is compared with that over keys and values computed by torch."""

from dataclasses import replace

import pytest
import torch
from support.paged import DTYPES, GROUPED, MULTI_HEAD, SHAPES, TOLERANCE, Heads, Paged

from macroserve.kernels.attend_hidden import attend_hidden, attend_hidden_reference

ROTARY = pytest.mark.parametrize("rotary", [False, True], ids=["absorbed", "rotary"])


def check(paged: Paged) -> None:
    arguments = (paged.query, paged.hidden, paged.decodes, paged.projection, paged.scale)
    found = paged.noise(*paged.query.shape)
    expected = found.clone()
    attend_hidden(*arguments, found)
    attend_hidden_reference(*arguments, expected)
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@ROTARY
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attend_hidden_in_every_dtype_equals_reference(
    device: torch.device, dtype: torch.dtype, rotary: bool
) -> None:
    check(Paged(MULTI_HEAD, dtype, device, rotary=rotary, bias=True))


@ROTARY
@pytest.mark.parametrize(("heads", "block_size", "seq_lens"), SHAPES.values(), ids=SHAPES)
def test_attend_hidden_in_every_shape_equals_reference(
    device: torch.device, heads: Heads, block_size: int, seq_lens: tuple[int, ...], rotary: bool
) -> None:
    check(Paged(heads, torch.float32, device, block_size, seq_lens, rotary=rotary))


@ROTARY
@pytest.mark.parametrize("heads", [MULTI_HEAD, GROUPED], ids=["multi-head", "grouped"])
def test_attend_hidden_with_biases_equals_reference(
    device: torch.device, heads: Heads, rotary: bool
) -> None:
    check(Paged(heads, torch.float32, device, rotary=rotary, bias=True))


def test_attend_hidden_without_requests_writes_nothing(device: torch.device) -> None:
    paged = Paged(MULTI_HEAD, torch.float32, device)
    paged.decodes = replace(paged.decodes, requests=paged.decodes.requests[:0], max_seq_len=0)
    check(paged)
