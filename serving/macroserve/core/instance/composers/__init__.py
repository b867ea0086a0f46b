"""One module per way of batching: each picks the decodes and prefills of the next iteration."""

from collections.abc import Callable

from macroserve.core.instance.composers import (
    adaptive,
    chunked,
    decoupled,
    piggyback,
    separate,
    slack,
    temporal,
)
from macroserve.core.instance.step import Plan, Step
from macroserve.core.strategy import Batching

COMPOSERS: dict[Batching, Callable[[Step], Plan]] = {
    Batching.SEPARATE: separate.compose,
    Batching.CHUNKED: chunked.compose,
    Batching.TEMPORAL: temporal.compose,
    Batching.PIGGYBACK: piggyback.compose,
    Batching.ADAPTIVE: adaptive.compose,
    Batching.ADAPTIVE_CHUNKED: adaptive.compose_chunked,
    Batching.DECOUPLED: decoupled.compose,
    Batching.SLACK: slack.compose,
}
