"""Rebuilt keys and values are compared with torch's."""

import pytest
import torch
from support.paged import DTYPES, MULTI_HEAD, SHAPES, TOLERANCE, Heads, Paged

from macroserve.kernels.pool import kv_view
from macroserve.kernels.rebuild_kv import rebuild_kv, rebuild_kv_reference


def check(paged: Paged, num_tokens: int) -> None:
    heads, block_size = paged.heads, paged.block_size
    source = paged.slots(num_tokens, paged.hidden.shape[1])
    target = paged.slots(len(source), block_size)
    source = source[: len(target)]
    positions = torch.arange(len(source), device=source.device) * 7 % 500
    arguments = paged.hidden, source, positions, paged.projection
    found = paged.noise(*paged.pool.shape)
    expected = found.clone()
    for rebuild, pool in ((rebuild_kv, found), (rebuild_kv_reference, expected)):
        rebuild(*arguments, *kv_view(pool, block_size, heads.num_kv_heads, heads.size), target)
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("rotary", [False, True], ids=["plain", "rotary"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rebuild_kv_in_every_dtype_equals_reference(
    device: torch.device, dtype: torch.dtype, rotary: bool
) -> None:
    check(Paged(MULTI_HEAD, dtype, device, rotary=rotary, bias=True), 50)


@pytest.mark.parametrize(("heads", "block_size", "seq_lens"), SHAPES.values(), ids=SHAPES)
def test_rebuild_kv_in_every_shape_equals_reference(
    device: torch.device, heads: Heads, block_size: int, seq_lens: tuple[int, ...]
) -> None:
    check(Paged(heads, torch.float32, device, block_size, seq_lens, rotary=True), 20)


@pytest.mark.parametrize("num_tokens", [0, 1, 129])
def test_rebuild_kv_of_any_number_of_tokens_equals_reference(
    device: torch.device, num_tokens: int
) -> None:
    check(Paged(MULTI_HEAD, torch.float32, device), num_tokens)


def test_rotation_of_both_by_the_same_offset_keeps_the_score(device: torch.device) -> None:
    """Rotary embedding has this property, so the reference is right, too."""
    paged = Paged(Heads(2, 1, 64), torch.float32, device, rotary=True)
    x = paged.noise(2, paged.heads.hidden_size)
    scores = [
        (first * second).sum(-1)
        for shift in (0, 100)
        for first, second in [
            paged.projection.keys(x, torch.tensor([3 + shift, 50 + shift], device=device))
        ]
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)
