"""One request of a plan: when it leaves, and how long it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """arrival_s: seconds since the start of the run, or of the trace."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
