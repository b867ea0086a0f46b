"""Repetition of a step of decodes without asking the policy.

EconoServe's groups start and end together "eliminating the need for iteration-level scheduling"
(section 3.3.2). A policy marks a plan that it would make again as ``Plan.repeatable``; these events
end the repetition:

- a request is added, finished, handed back, or loaded;
- a response ends, reaches its expected length, pauses, or gets other tokens than the rest;
- a response has no slot for its next token, or the number of free blocks changes;
- the instance starts or stops draining, changes its pool, or the permission to offload changes.

A status report does not.
"""

from macroserve.core.batch import Batch, BatchKind, BatchResult
from macroserve.core.latency import LatencyModel, Work
from macroserve.core.scheduler.iteration import IterationInputs, Plan
from macroserve.core.scheduler.running import Running


class RepeatedPlan:
    """The last plan, if it is repeatable."""

    def __init__(self) -> None:
        self.num_repeated = 0
        """Steps run without the policy since the start."""
        self._plan: Plan | None = None
        self._free_blocks = 0

    def end(self) -> None:
        """Let the policy decide the next step."""
        self._plan = None

    def observe(self, result: BatchResult) -> None:
        """End if a batch did more than give each decode the same number of tokens."""
        if result.prefilled or result.emitted or result.loading:
            self._plan = None

    def begin(
        self, plan: Plan, batch: Batch, inputs: IterationInputs, *, may_offload: bool
    ) -> None:
        """Keep the plan if it is repeatable.

        None is while tokens are drafted, which change the room in a batch, or while urgent requests
        may leave the queue (``may_offload``).
        """
        running, leaves = inputs.running, inputs.waiting and may_offload
        changes = batch.preempted or batch.handed_back or inputs.config.num_drafts or leaves
        if changes or not plan.repeatable or len(plan.decodes) != len(running.decoding):
            return
        self._plan = plan
        self._free_blocks = running.blocks.free

    def again(self, running: Running, latency: LatencyModel) -> tuple[Batch, Work] | None:
        """Return the next batch and its work; None if the policy must decide."""
        plan = self._plan
        if plan is None:
            return None
        running.blocks.read_again()
        if running.needs_room or running.blocks.free != self._free_blocks:
            self._plan = None
            return None
        self.num_repeated += 1
        work = running.decoding.work(latency)
        predicted_s = latency.predict(work)
        return Batch(
            BatchKind.DECODE, decodes=plan.decodes, predicted_s=predicted_s, reason=plan.reason
        ), work
