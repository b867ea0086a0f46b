"""Batching policies, a module per paper: each picks prefills and decodes of the next iteration."""

from collections.abc import Callable

from macroserve.core.scheduler.batching.aptserve import aptserve_batch, chunked_aptserve_batch
from macroserve.core.scheduler.batching.ascendra import ascendra_batch
from macroserve.core.scheduler.batching.baselines import chunked_batch, prefill_first_batch
from macroserve.core.scheduler.batching.econoserve import econoserve_batch
from macroserve.core.scheduler.batching.ecoserve import ecoserve_batch
from macroserve.core.scheduler.batching.unified import unified_batch
from macroserve.core.scheduler.iteration import Plan, Step
from macroserve.core.strategy import Batching

COMPOSERS: dict[Batching, Callable[[Step], Plan]] = {
    Batching.SEPARATE: prefill_first_batch,
    Batching.CHUNKED: chunked_batch,
    Batching.TEMPORAL: ecoserve_batch,
    Batching.PIGGYBACK: ascendra_batch,
    Batching.ADAPTIVE: aptserve_batch,
    Batching.ADAPTIVE_CHUNKED: chunked_aptserve_batch,
    Batching.DECOUPLED: econoserve_batch,
    Batching.SLACK: unified_batch,
}
