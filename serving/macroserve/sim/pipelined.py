"""An instance whose devices form a pipeline."""

from macroserve.core.batch import Batch
from macroserve.core.status import Pool
from macroserve.sim.hardware.pipeline import Pipeline
from macroserve.sim.instance import MAX_RUN_STEPS, InstanceSpec, SimulatedInstance, StepOutcome


class PipelinedInstance(SimulatedInstance):
    """Bubbles come where a batch's micro-batches are shorter than those of the one before: what
    leads is then still behind the longer ones, and the first stage idles (EcoServe, figure 4).

    The scheduler decides for all stages together, and its next batch begins when the first stage
    has taken in all of the one before.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        engine: InstanceSpec,
        pipeline: Pipeline,
        max_run_steps: int = MAX_RUN_STEPS,
    ) -> None:
        super().__init__(name, pool, engine, max_run_steps)
        self._pipeline = pipeline
        self._drained_s = 0.0

    def settle(self, now: float) -> StepOutcome | None:
        settled = super().settle(now)
        if settled:
            self._drained_s = settled.end_s + self._depth_s
        return settled

    def _ends_s(self, batch: Batch, now: float) -> list[float]:
        self._depth_s = (self._pipeline.num_stages - 1) * self._pipeline.stage_s(
            *self._contents(batch)
        )
        # The last stage is not free for it before it has let the batch before out.
        return super()._ends_s(batch, max(now, self._drained_s - self._depth_s))
