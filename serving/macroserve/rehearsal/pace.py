"""Begin and end of the steps of a rehearsed engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from macroserve.core.shapes import ModelShape
from macroserve.engine.rehearsal import Rehearsal
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.host import Host
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.step_time import StepTime

USUAL_LINKS = {"A100": "nvlink3", "A800": "nvlink3", "H100": "nvlink4", "H200": "nvlink4"}
"""Links between devices of a machine, by their model; PCIe for others."""
WORKER = Host(step_s=1e-3, sequence_s=5e-6)
"""What a worker's host does before the device begins: inputs, and launching kernels."""
NO_HOST = Host(step_s=0.0, sequence_s=0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a step."""

    prefills: Sequence[tuple[int, int]]
    """Tokens of each prompt, and tokens before them."""
    num_decodes: int
    decode_context: int
    """Tokens that the decodes attend to, all together."""


@dataclass(slots=True)
class Step:
    """A step on the device; times on the monotonic clock, seconds."""

    start: float
    end: float
    idle_s: float
    """How long the first stage was idle before."""
    load: Load
    late_s: float = 0.0
    """By how much its tokens came later than its end."""


class Pace:
    """The devices of an instance, each busy until a time.

    A pipeline's stages work on other batches at a time. Every stage has an equal share of the
    layers, and sends the hidden states of a batch to the next one.
    """

    def __init__(self, model: ModelShape, num_stages: int, rehearsed: Rehearsal) -> None:
        device = DEVICES[rehearsed.device]
        family = rehearsed.device.partition("-")[0]
        self._link = LINKS[rehearsed.link or USUAL_LINKS.get(family, "pcie4")]
        self._times = StepTime(model, device, self._link, NO_HOST)
        self._hidden_bytes = model.hidden_size * model.dtype_bytes
        self._scale, self._noise = rehearsed.scale, rehearsed.noise
        self._random = Random(rehearsed.seed)
        self._free_at = [0.0] * num_stages

    def step(self, load: Load, now: float) -> Step:
        """Return when a step runs that the worker gets now."""
        num_tokens = load.num_decodes + sum(tokens for tokens, _ in load.prefills)
        num_sequences = load.num_decodes + len(load.prefills)
        step_s = self._times.seconds(load.prefills, load.num_decodes, load.decode_context)
        step_s *= self._random.lognormvariate(0.0, self._noise)
        stage_s = step_s / len(self._free_at)
        send_s = self._link.latency_s + num_tokens * self._hidden_bytes / self._link.bytes_per_s
        ready = now + self._scale * (WORKER.step_s + num_sequences * WORKER.sequence_s)
        start = max(ready, self._free_at[0])
        idle_s = start - self._free_at[0] if self._free_at[0] else 0.0
        for stage, free_at in enumerate(self._free_at):
            ready = max(ready, free_at) + self._scale * stage_s
            self._free_at[stage] = ready
            if stage + 1 < len(self._free_at):
                ready += self._scale * send_s
        return Step(start, ready, idle_s, load)

    def hold(self, step: Step, until: float) -> None:
        """Let the last stage wait with the end of its latest step."""
        if until > step.end:
            step.end = until
            self._free_at[-1] = max(self._free_at[-1], until)
