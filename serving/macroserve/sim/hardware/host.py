"""The host around an instance's devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A host adds the time of the engine's own work to a step, while the device waits."""

    step_s: float = 2e-3
    """Seconds to schedule a step and prepare its inputs."""
    sequence_s: float = 1e-5
    """Seconds for each sequence of the batch."""


VLLM_HOST = Host()
"""Host time of a present vLLM."""
