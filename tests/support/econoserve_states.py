"""States of EconoServe's scheduler for several tests."""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.core.scheduler.sequence import State
from macroserve.core.strategies import STRATEGIES

PATIENT = Slo(ttft_s=60.0, tpot_s=30.0)
ECONOSERVE = STRATEGIES["econoserve"]
NO_LENDING = replace(ECONOSERVE, kv_lending=False)


def arrive(executor, make_request, *prompts, slo=PATIENT, new=200):
    for prompt in prompts:
        name = f"r{len(executor.requests)}"
        assert executor.add(make_request(name, executor.now, prompt, new, slo)) is None


def held(scheduler, name):
    return scheduler.running.blocks.held_by(name)


def expect(scheduler, name, num_tokens):
    """Set the expected length of a response."""
    seq = scheduler.sequences[name]
    assert seq.state is State.PAUSED
    seq.predicted_tokens = num_tokens
    scheduler.drain(False)  # ends a repeated plan, which uses the previous length


def wait_for_memory(scheduler, executor, name, num_tokens):
    """Run until a response waits for memory, and set its expected length."""
    while name not in scheduler.running.paused:
        executor.step()
    expect(scheduler, name, num_tokens)
