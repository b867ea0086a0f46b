"""Mooncake's conversations, as recorded: 12,031 requests of an hour that say what they share.

The trace, conversation_trace.jsonl of FAST25-release/traces in kvcache-ai/Mooncake, is not part of
this project.
"""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.workload.load import TraceLoad
from macroserve.workload.trace import Trace
from macroserve_lab.papers.figure import Figure
from macroserve_lab.papers.prefixes.cache_hits import Case, figure_of
from macroserve_lab.papers.prefixes.published import WORLDS

STRETCH_S = 900.0
"""Seconds of the trace that are served, from its start."""

TIME_SCALES = {8: 1.0, 16: 2.0}
"""Speed of the replay by the number of instances."""

CLUSTER = replace(WORLDS["llm-d"].cluster, max_model_len=131_072)
SLO = Slo(4.0, 0.1)


def figure(trace: Trace) -> Figure:
    """Return the figure of a trace. Raises ValueError for one that does not say what prompts
    share."""
    stretch = Trace(tuple(row for row in trace.rows if row.at_s < STRETCH_S))
    if not any(row.block_ids for row in stretch.rows):
        raise ValueError("the trace has no hash_ids, which say which prompts begin alike")
    return figure_of(
        "mooncake",
        [
            Case(
                f"{number} instances, {speed:g} x speed",
                replace(CLUSTER, num_instances=number),
                SLO,
                TraceLoad(stretch, speed),
            )
            for number, speed in TIME_SCALES.items()
        ],
    )
