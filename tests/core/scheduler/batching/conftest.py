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
