"""Load that a deployment had, as its head reports it."""

import msgspec

from macroserve.core.shapes import DeviceShape, ModelShape


class LoadBucket(msgspec.Struct, frozen=True):
    """Requests that were placed in one stretch of time, which ended ``age_s`` ago."""

    age_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int


class LoadReport(msgspec.Struct, frozen=True):
    """The requests of the last ten minutes.

    buckets: ``bucket_s`` long each, newest first, ten minutes of them.
    lengths: (prompt, output) tokens of a sample of recent requests; outputs as predicted at
        placement.
    coefficients, model, device: what an instance's latency model is made of; None before one was
        asked.
    """

    bucket_s: float
    buckets: tuple[LoadBucket, ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    coefficients: tuple[float, ...] | None = None
    model: ModelShape | None = None
    device: DeviceShape | None = None
