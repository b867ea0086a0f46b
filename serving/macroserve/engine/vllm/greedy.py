"""Requests for the likeliest tokens warm engines up, and measure them."""

from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams


def greedy(
    num_tokens: int,
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY,
    extra_args: dict[str, Any] | None = None,
) -> SamplingParams:
    """Return the parameters of a request for ``num_tokens`` of the likeliest tokens, without their
    text."""
    return SamplingParams(
        max_tokens=num_tokens,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=output_kind,
        extra_args=extra_args,
    )
