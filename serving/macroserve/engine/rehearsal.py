"""Description of a rehearsal: steps take as long as on a modelled device, but compute nothing.

The environment variable ``MACROSERVE_REHEARSE`` holds the `Rehearsal` as JSON. vLLM then loads
`macroserve.rehearsal` as its platform; nothing else imports that package, so that no scheduler can
read how long a step will take.
"""

import math
import os
from importlib.metadata import entry_points

import msgspec

from macroserve.core.accelerators import PEAKS

VARIABLE = "MACROSERVE_REHEARSE"
PLUGIN = "macroserve-rehearsal"
"""Entry point in ``vllm.platform_plugins``, which loads where ``VLLM_PLUGINS`` names it."""
BLOCK_TOKENS = 16
"""Tokens of a KV cache block on GPUs, vLLM's choice."""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """The modelled device, and how its steps vary."""

    device: str
    """A name in `macroserve.sim.hardware.devices.DEVICES`."""
    link: str | None = None
    """Link between the devices of an instance, a name in `macroserve.sim.hardware.links.LINKS`;
    None for the device's usual one."""
    scale: float = 1.0
    """Factor on the duration of every step, so that a small machine keeps pace."""
    noise: float = 0.02
    """Coefficient of variation of a step's duration."""
    draft_acceptance: float = 0.7
    """Probability that a drafted token is accepted if those before it are. Drafting takes no
    time."""
    seed: int = 0
    log_folder: str | None = None
    """Folder for a line of JSON about each step."""

    def __post_init__(self) -> None:
        """Raise ValueError for a device, a factor or a share that cannot be."""
        if self.device not in PEAKS:
            raise ValueError(f"device is {self.device!r}, must be one of {', '.join(PEAKS)}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale is {self.scale:g}, must be above 0")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"noise is {self.noise:g}, must be at least 0")
        if not 0 <= self.draft_acceptance <= 1:
            raise ValueError(f"draft_acceptance is {self.draft_acceptance:g}, must be from 0 to 1")

    def environment(self) -> dict[str, str]:
        """Return the variables of a process whose engine rehearses, with the plugins of this
        process."""
        plugins = [*filter(None, os.environ.get("VLLM_PLUGINS", "").split(",")), PLUGIN]
        return {
            VARIABLE: msgspec.json.encode(self).decode(),
            "VLLM_PLUGINS": ",".join(dict.fromkeys(plugins)),
        }


def rehearsal() -> Rehearsal | None:
    """Return what this process rehearses, if anything."""
    text = os.environ.get(VARIABLE)
    return msgspec.json.decode(text, type=Rehearsal) if text else None


def rehearse(device: str | None) -> None:
    """Let this process rehearse a device, unless its environment has a rehearsal; before vLLM is
    imported. Raises RuntimeError if vLLM would not find the platform, and run the model."""
    if device is None:
        return
    if not entry_points(group="vllm.platform_plugins", name=PLUGIN):
        raise RuntimeError(
            f"spec.engine.rehearse needs the entry point {PLUGIN}, which this installation of "
            "macroserve lacks: install it again"
        )
    if VARIABLE not in os.environ:
        os.environ.update(Rehearsal(device=device).environment())
