"""Paged decode attention is compared with torch's."""

from dataclasses import replace

import pytest
import torch
from support.paged import DTYPES, MULTI_HEAD, SHAPES, TOLERANCE, Heads, Paged

from macroserve.kernels.attend_kv import attend_kv, attend_kv_reference


def check(paged: Paged) -> None:
    arguments = (paged.query, *paged.keys_and_values, paged.decodes, paged.scale)
    found = paged.noise(*paged.query.shape)
    expected = found.clone()
    attend_kv(*arguments, found)
    attend_kv_reference(*arguments, expected)
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attend_kv_in_every_dtype_equals_reference(
    device: torch.device, dtype: torch.dtype
) -> None:
    check(Paged(MULTI_HEAD, dtype, device))


@pytest.mark.parametrize(("heads", "block_size", "seq_lens"), SHAPES.values(), ids=SHAPES)
def test_attend_kv_in_every_shape_equals_reference(
    device: torch.device, heads: Heads, block_size: int, seq_lens: tuple[int, ...]
) -> None:
    check(Paged(heads, torch.float32, device, block_size, seq_lens))


def test_attend_kv_with_several_pieces_equals_reference(device: torch.device) -> None:
    check(Paged(Heads(1, 1, 64), torch.float32, device, seq_lens=(1300, 1, 513)))


def test_attend_kv_reference_equals_torch_attention(device: torch.device) -> None:
    paged = Paged(Heads(2, 3, 64), torch.float32, device, seq_lens=(5,))
    keys, values = (
        each[paged.decodes.block_table[0, 0].item(), :5].transpose(0, 1)
        for each in paged.keys_and_values
    )
    out = torch.empty_like(paged.query)
    attend_kv_reference(paged.query, *paged.keys_and_values, paged.decodes, paged.scale, out)
    expected = torch.nn.functional.scaled_dot_product_attention(
        paged.query.transpose(0, 1), keys, values, enable_gqa=True
    )
    torch.testing.assert_close(out.transpose(0, 1), expected)


def test_attend_kv_without_requests_writes_nothing(device: torch.device) -> None:
    paged = Paged(MULTI_HEAD, torch.float32, device)
    paged.decodes = replace(paged.decodes, requests=paged.decodes.requests[:0], max_seq_len=0)
    check(paged)
