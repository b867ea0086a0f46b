"""Attainment by the size of requests, as a good mean can hide late long prompts."""

from collections.abc import Sequence
from itertools import pairwise

from macroserve.bench.serve.record import RequestRecord
from macroserve.core.request import Slo

SIZES = ("short", "medium", "long")
"""Thirds of a point's requests by prompt tokens, which are the same for all deployments."""


def attainment_by_size(records: Sequence[RequestRecord], slo: Slo) -> dict[str, float]:
    """Return the share of requests within their targets in each third that has requests."""
    ordered = sorted(records, key=lambda record: record.num_prompt_tokens)
    ends = [len(ordered) * index // len(SIZES) for index in range(len(SIZES) + 1)]
    thirds = (ordered[start:end] for start, end in pairwise(ends))
    return {
        size: sum(record.meets(slo) for record in third) / len(third)
        for size, third in zip(SIZES, thirds, strict=True)
        if third
    }
