"""Totals of one instance's steps, for forward size and use of compute."""

from typing import NamedTuple, Self

from macroserve.sim.instance import StepOutcome


class StepTotals(NamedTuple):
    """Sums over steps of one instance."""

    num: int = 0
    """Number of steps."""
    num_tokens: int = 0
    """Prompt tokens and decodes of all steps."""
    num_preempted: int = 0
    num_without_end: int = 0
    """Steps in which no response ended."""

    def plus(self, outcome: StepOutcome) -> Self:
        """Return the totals with the steps of one more batch, of which only the last may end
        responses."""
        batch, num = outcome.batch, outcome.num_steps
        return type(self)(
            self.num + num,
            self.num_tokens + num * batch.num_tokens,
            self.num_preempted + len(batch.preempted),
            self.num_without_end + num - bool(outcome.finished),
        )
