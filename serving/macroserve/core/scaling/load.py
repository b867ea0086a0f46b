"""Load of a deployment, as its head reports it."""

import msgspec

from macroserve.core.shapes import DeviceShape, ModelShape


class LoadBucket(msgspec.Struct, frozen=True):
    """Requests placed in one interval."""

    age_s: float
    """Time since the end of the interval, seconds."""
    requests: int
    prompt_tokens: int
    """Prompt tokens that no prefix cache was expected to have."""
    output_tokens: int


class LoadReport(msgspec.Struct, frozen=True):
    """Requests of the last ten minutes, and an instance's model (None until one was asked)."""

    bucket_s: float
    """Length of a bucket, seconds."""
    buckets: tuple[LoadBucket, ...] = ()
    """Newest first."""
    lengths: tuple[tuple[int, int], ...] = ()
    """(prompt, output) tokens of a sample of recent requests: prompts without tokens expected in a
    prefix cache, outputs as predicted at placement."""
    coefficients: tuple[float, ...] | None = None
    """Coefficients of the latency model."""
    model: ModelShape | None = None
    device: DeviceShape | None = None
    max_num_seqs: int | None = None
    max_batch_tokens: int | None = None
    classes: tuple[str, ...] = ()
    """SLO class of each request in ``lengths``; empty if all are in the default class."""
