"""Host time of an instance."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """The engine's own work for each step."""

    step_s: float = 2e-3
    """Seconds to schedule a step and prepare its inputs."""
    sequence_s: float = 1e-5
    """Seconds per sequence of the batch."""
    ahead: bool = False
    """Whether it overlaps with the previous step on the device, so that the longer one counts."""


VLLM_HOST = Host()
"""Host time of current vLLM, in series with the device as in the papers' engines."""

VLLM_AHEAD = Host(ahead=True)
"""The same with asynchronous scheduling, vLLM's default on GPUs."""
