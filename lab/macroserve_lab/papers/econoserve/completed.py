"""The rule by which EconoServe counts a request as served in time (section 4)."""

from dataclasses import dataclass
from typing import ClassVar

from macroserve.sim.device import SimRequest
from macroserve_lab.papers.econoserve.cases import SCALE, Model, Trace, alone_s


@dataclass(frozen=True, slots=True)
class Completed:
    """An SLO rule under which a response ends within ``scale`` times the time that prompt and
    tokens take alone, in the mean of the trace.

    prompt_s: time of a prompt alone, seconds.
    token_s: time of a token alone, seconds.
    """

    prompt_s: float
    token_s: float
    scale: float = SCALE
    ignores_ttft: ClassVar[bool] = True

    def __call__(self, record: SimRequest) -> bool:
        limit_s = self.scale * (self.prompt_s + self.token_s * record.num_output)
        return record.last_s - record.request.arrival_s <= limit_s

    @staticmethod
    def of(model: Model, trace: Trace, scale: float = SCALE) -> "Completed":
        return Completed(*alone_s(model, trace), scale)
