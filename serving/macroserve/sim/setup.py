"""What serves, and by which rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from macroserve.core.request import Slo
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.strategy import Strategy
from macroserve.sim.cell import SimulatedCell
from macroserve.sim.deployment import CHUNK_TOKENS, Deployment
from macroserve.sim.disaggregated import DisaggregatedCell
from macroserve.sim.fleet import SimulatedFleet
from macroserve.sim.instance import Engine
from macroserve.sim.judge import Judge, as_client
from macroserve.sim.outcome import DECIDED, Extent, Outcome
from macroserve.workload.arrivals import Arrival


@dataclass(frozen=True, slots=True)
class Setup:
    """A deployment under a strategy.

    high_priority_ratio: share of the instances in the HP pool, or that prefill.
    bounds: of a cell; where they are None, or one cell holds all instances, there is one.
    """

    deployment: Deployment
    strategy: Strategy
    slo: Slo
    judge: Judge = as_client
    high_priority_ratio: float = 0.0
    chunk_tokens: int = CHUNK_TOKENS
    late_value: float = 0.0
    drop_late: bool = False
    bounds: Bounds | None = None

    def serve(
        self,
        arrivals: Sequence[Arrival],
        *,
        num_before: int = 0,
        extent: Extent = DECIDED,
        seed: int = 0,
    ) -> Outcome:
        """What comes of the arrivals, of which the first ``num_before`` do not count.

        seed: of the noise. The rest is as for ``SimulatedCell.serve``. Raises ValueError where the
        model does not fit, or nothing carries what the strategy moves.
        """
        engine = self.deployment.engine(
            self.strategy,
            self.slo,
            chunk_tokens=self.chunk_tokens,
            late_value=self.late_value,
            drop_late=self.drop_late,
            seed=seed,
        )
        return self._cell(engine).serve(
            arrivals,
            num_before=num_before,
            judge=self.judge,
            extent=extent,
        )

    def _cell(self, engine: Engine) -> SimulatedCell:
        deployment, ratio = self.deployment, self.high_priority_ratio
        if not self.strategy.moves_kv:
            bounds, num = self.bounds, deployment.num_instances
            if bounds is None or num <= bounds.upper:
                return SimulatedCell(engine, num, ratio)
            return SimulatedFleet(engine, num, bounds, ratio)
        if deployment.fabric is None:
            raise ValueError(f"{self.strategy.name} moves KV caches, and there is nothing between")
        kv_bytes = deployment.shape.kv_bytes_per_token
        return DisaggregatedCell(
            engine, deployment.num_instances, ratio, deployment.fabric, kv_bytes
        )
