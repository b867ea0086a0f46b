"""Totals of one instance's steps, from which forward size and use of compute follow."""

from typing import NamedTuple, Self

from macroserve.sim.instance import StepOutcome


class StepTotals(NamedTuple):
    """The totals sum steps of one instance.

    num: number of steps.
    num_tokens: prompt tokens and decodes of all steps; of one step they are its forward size.
    num_preempted: requests that gave up their caches, counted each time.
    num_without_end: steps in which no response ended.
    """

    num: int = 0
    num_tokens: int = 0
    num_preempted: int = 0
    num_without_end: int = 0

    def plus(self, outcome: StepOutcome) -> Self:
        """Return the totals with the steps of one more batch, of which the last alone may end
        responses."""
        batch, num = outcome.batch, outcome.num_steps
        return type(self)(
            self.num + num,
            self.num_tokens + num * batch.num_tokens,
            self.num_preempted + len(batch.preempted),
            self.num_without_end + num - bool(outcome.finished),
        )
