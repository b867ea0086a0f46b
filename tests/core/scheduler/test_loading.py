"""Prompts whose blocks the engine loads hold seat and memory, and run once they are there."""

import pytest

from macroserve.core.batch import Batch, BatchKind, BatchResult
from macroserve.core.latency import LatencyModel
from macroserve.core.scheduler.blocks import Hit
from macroserve.core.scheduler.estimators import Averages
from macroserve.core.scheduler.prompt_costs import PromptCosts
from macroserve.core.scheduler.scheduler import InstanceScheduler
from macroserve.core.scheduler.sequence import State
from macroserve.core.strategies import STRATEGIES


def begin_load(scheduler: InstanceScheduler, now: float) -> Batch:
    """Let the engine load blocks for all prompts of the next batch."""
    batch = scheduler.schedule(now)
    ids = [prefill.request_id for prefill in batch.prefills]
    loading = BatchResult(batch.predicted_s, dict.fromkeys(ids, 0), loading=ids)
    scheduler.promise(batch, loading)
    scheduler.settle((), {}, now)
    return batch


@pytest.mark.parametrize("name", STRATEGIES)
def test_loading_prompt_is_in_no_batch_until_it_is_loaded(make_scheduler, make_request, name):
    scheduler = make_scheduler(name)
    scheduler.add_request(make_request("r"), 0.0)
    free = scheduler.running.blocks.free
    assert [p.request_id for p in begin_load(scheduler, 0.0).prefills] == ["r"]
    assert scheduler.schedule(0.1).kind is BatchKind.IDLE
    assert len(scheduler.running) == 1 and scheduler.running.blocks.free < free
    status = scheduler.status(0.2)
    assert (status.num_running, status.waiting_tokens) == (1, 100)
    scheduler.loaded(["r", "another"])
    assert [p.request_id for p in scheduler.schedule(0.3).prefills] == ["r"]


def test_prompt_that_ends_while_it_is_loaded_frees_its_blocks(make_scheduler, make_request):
    scheduler = make_scheduler()
    scheduler.add_request(make_request("r"), 0.0)
    begin_load(scheduler, 0.0)
    scheduler.finish("r")
    scheduler.loaded(["r"])
    assert not scheduler.sequences and not len(scheduler.running)
    scheduler.running.blocks.check()


def test_loading_prompt_keeps_its_blocks_when_others_need_them(make_scheduler, make_request):
    scheduler = make_scheduler("vllm", num_blocks=14)
    scheduler.add_request(make_request("decoding", 0.0, prompt=90, new=100), 0.0)
    scheduler.add_request(make_request("loading", 0.5, prompt=60, new=20), 0.0)
    batch = scheduler.schedule(0.0)
    taken = BatchResult(
        batch.predicted_s, {"decoding": 90, "loading": 0}, {"decoding": 1}, loading=["loading"]
    )
    scheduler.update(batch, taken, 0.1)
    while not (batch := scheduler.schedule(0.2)).preempted:
        scheduler.update(batch, BatchResult(0.01, decoded=1), 0.2)
    assert batch.preempted == ("decoding",)
    assert scheduler.sequences["loading"].state is State.LOADING


class HostedPrompt:
    """A cache that has 80 tokens of each prompt in the memory of the host."""

    free, allocated = 100, 0

    def __init__(self, load_s: float) -> None:
        self._load_s = load_s

    def keeps_to(self, request_id: str, num_blocks: int) -> bool:
        return True

    def shared_by(self, request_id: str) -> int:
        return 0

    def num_cached(self, request_id: str, last_found: int) -> int:
        return 80

    def find(self, request_id: str) -> Hit:
        return Hit(80, 0, self._load_s)


def test_load_makes_a_prompt_due_earlier_and_costs_others_nothing(make_latency, make_sequence):
    latency: LatencyModel = make_latency()
    found = []
    for load_s in (0.0, 0.25):
        seq = make_sequence(prompt=100)
        PromptCosts(latency, 512, Averages(), HostedPrompt(load_s)).arrive(seq)
        assert seq.num_to_prefill == 20
        found.append(seq)
    at_once, loaded = found
    assert loaded.start_by_s == pytest.approx(at_once.start_by_s - 0.25)
    assert loaded.prefill_s == at_once.prefill_s
    assert loaded.cost_s == at_once.cost_s
