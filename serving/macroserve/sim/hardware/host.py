"""The host around an instance's devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A host does the engine's own work of each step, while the device waits or computes the step
    before.
    """

    step_s: float = 2e-3
    """Seconds to schedule a step and prepare its inputs."""
    sequence_s: float = 1e-5
    """Seconds for each sequence of the batch."""
    ahead: bool = False
    """True if it schedules a step while the one before runs, so that the longer of the two
    decides how long a step takes."""


VLLM_HOST = Host()
"""Host time of a present vLLM, in series with the device as in the papers' engines."""

VLLM_AHEAD = Host(ahead=True)
"""The same with asynchronous scheduling, vLLM's default on GPUs."""
