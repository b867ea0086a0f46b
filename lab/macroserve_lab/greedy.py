"""Sampling parameters for warming up and measuring engines."""

from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams


def greedy(num_tokens: int, **more: Any) -> SamplingParams:
    """Return parameters for generating ``num_tokens`` greedily, without text.

    more: fields of ``SamplingParams``, which override those set here.
    """
    fields = {
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    return SamplingParams(**{**fields, **more})
