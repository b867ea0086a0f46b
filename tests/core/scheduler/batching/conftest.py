"""The tests of batching share a short form of plans."""

import pytest


@pytest.fixture(scope="session")
def compose(make_step):
    """Return the plan as ``(kind, picks, decodes, reason)``."""

    def build(*args, **kwargs):
        step = make_step(*args, **kwargs)
        plan = step.plan()
        picks = [(pick.seq.request_id, pick.num_tokens) for pick in plan.picks]
        return plan.kind, picks, list(plan.decodes), plan.reason

    return build


@pytest.fixture
def make(make_scheduler, make_executor, make_request):
    """Return a scheduler that has seen responses of ``expected`` tokens, and an executor.

    The executor ends responses at their ``lengths``, by default 40 tokens. Blocks have 16 tokens.
    """

    def build(expected=40, lengths=None, strategy="econoserve", **fields):
        scheduler = make_scheduler(strategy, **fields)
        executor = make_executor(scheduler, {f"r{i}": 40 for i in range(100)} | (lengths or {}))
        for _ in range(9):
            scheduler.lengths.observe(make_request("example", prompt=10, new=50), expected)
        return scheduler, executor

    return build
