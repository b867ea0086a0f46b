"""Requests for the likeliest tokens warm engines up, and measure them."""

from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams


def greedy(num_tokens: int, **more: Any) -> SamplingParams:
    """Return the parameters of a request for ``num_tokens`` of the likeliest tokens, without their
    text.

    more: fields of vLLM's ``SamplingParams``, also in place of those set here.
    """
    fields = {
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    return SamplingParams(**{**fields, **more})
