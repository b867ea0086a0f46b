"""A deployment's head reports its load."""

import msgspec

from macroserve.core.shapes import DeviceShape, ModelShape


class LoadBucket(msgspec.Struct, frozen=True):
    """The bucket counts the requests placed in one interval."""

    age_s: float
    """Time since the end of the interval, seconds."""
    requests: int
    prompt_tokens: int
    """Prompt tokens but for those that a prefix cache was expected to have."""
    output_tokens: int


class LoadReport(msgspec.Struct, frozen=True):
    """The report covers the requests of the last ten minutes."""

    bucket_s: float
    """Length of a bucket, seconds."""
    buckets: tuple[LoadBucket, ...] = ()
    """Ten minutes of buckets, newest first."""
    lengths: tuple[tuple[int, int], ...] = ()
    """(prompt, output) tokens of a sample of recent requests: prompts without what a prefix cache
    was expected to have, outputs as predicted at placement."""
    coefficients: tuple[float, ...] | None = None
    """Coefficients of an instance's latency model; None before an instance was asked."""
    model: ModelShape | None = None
    """Shape of the model; None before an instance was asked."""
    device: DeviceShape | None = None
    """Peak rates of a device; None before an instance was asked."""
    max_num_seqs: int | None = None
    """Maximum sequences of a batch; None before an instance was asked."""
    max_batch_tokens: int | None = None
    """Maximum tokens of a batch; None before an instance was asked."""
    classes: tuple[str, ...] = ()
    """Names of the SLO classes of the requests of ``lengths``; empty where all are of the default
    one."""
