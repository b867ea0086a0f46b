"""The requests of a batch keep keys and values, or hidden states."""

from dataclasses import replace

import pytest
import torch
from support.paged import GROUPED, MULTI_HEAD, TOLERANCE, Heads, Paged

from macroserve.kernels.attend_mixed import attend_mixed, attend_mixed_reference

SEQ_LENS = (5, 70, 33, 140, 1, 64)


@pytest.mark.parametrize("rotary", [False, True], ids=["absorbed", "rotary"])
@pytest.mark.parametrize("heads", [MULTI_HEAD, GROUPED], ids=["multi-head", "grouped"])
@pytest.mark.parametrize(
    "hidden", [(), (0,), (1, 2, 5), tuple(range(6))], ids=["none", "one", "half", "all"]
)
def test_attend_mixed_reads_each_request_from_its_own_cache(
    device: torch.device, heads: Heads, hidden: tuple[int, ...], rotary: bool
) -> None:
    paged = Paged(heads, torch.float32, device, seq_lens=SEQ_LENS, rotary=rotary)

    def rows(chosen: list[int]) -> torch.Tensor:
        return torch.tensor(chosen, dtype=torch.int64, device=device)

    longest = replace(paged.decodes, max_seq_len=max(SEQ_LENS))
    arguments = (
        paged.query,
        paged.pool,
        paged.block_size,
        replace(longest, requests=rows([row for row in range(6) if row not in hidden])),
        replace(longest, requests=rows(list(hidden))),
        paged.projection,
        paged.scale,
    )
    found = torch.full_like(paged.query, torch.nan)
    expected = found.clone()
    attend_mixed(*arguments, found)
    attend_mixed_reference(*arguments, expected)
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert not found.isnan().any()
