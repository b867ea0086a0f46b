"""The machine around an instance's devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """What the engine's own work adds to a step while the device waits.

    step_s: to schedule, and to prepare inputs. sequence_s: for each sequence in the batch.
    """

    step_s: float = 2e-3
    sequence_s: float = 1e-5


VLLM_HOST = Host()
"""A present vLLM's."""
