import asyncio
import threading

import pytest
from prometheus_client import REGISTRY
from support.log_lines import log_lines

from macroserve.core.scaling.autoscale import CapacityEstimate
from macroserve.operator.k8s.names import Key
from macroserve.operator.plan.simulations import EVERY_S, PAUSES, STALE_S, Simulations

LLAMA, QWEN = Key("ns", "llama"), Key("ns", "qwen")


def errors():
    labels = {"kind": "simulation"}
    return REGISTRY.get_sample_value("macroserve_operator_errors_total", labels) or 0.0


class World:
    """Simulations with a manual clock, and the notified MacroInstances."""

    def __init__(self):
        self.now = 1000.0
        self.found = asyncio.Queue()
        self.simulations = Simulations(self.found.put_nowait, lambda: self.now)

    def need(self, enough, key=LLAMA, took_s=0.0):
        def simulate():
            self.now += took_s
            return CapacityEstimate(1.0, enough, enough)

        return self.simulations.latest(key, simulate)

    async def told(self):
        return await asyncio.wait_for(self.found.get(), 5)

    async def idle(self):
        async with asyncio.timeout(5):
            await asyncio.gather(*self.simulations.running.values())


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.simulations.stop()


async def test_simulation_result_is_returned_by_the_next_call(world):
    assert world.need(3) is None, "nobody waits for it"
    assert await world.told() == LLAMA
    assert world.need(99) == CapacityEstimate(1.0, 3, 3)
    assert world.need(99, QWEN) is None


async def test_simulation_runs_again_when_it_is_due(world):
    world.need(3)
    await world.told()
    world.now += EVERY_S - 0.1
    assert world.need(4).enough == 3
    await world.idle()
    assert world.need(4).enough == 3, "it was not time"
    world.now += 0.1
    assert world.need(4).enough == 3, "the last is known meanwhile"
    await world.told()
    assert world.need(4).enough == 4


async def test_simulation_with_an_equal_result_notifies_no_macroinstance(world):
    world.need(3)
    await world.told()
    world.now += EVERY_S
    world.need(3)
    await world.idle()
    assert world.found.empty()


async def test_simulation_that_takes_long_runs_less_often(world):
    world.need(3, took_s=10.0)
    await world.told()
    world.now += PAUSES * 10 - 0.1
    world.need(4)
    assert not world.simulations.running
    world.now += 0.1
    world.need(4)
    assert world.simulations.running
    await world.told()


async def test_simulation_result_of_long_ago_is_not_used(world):
    world.need(3)
    await world.told()
    world.now += STALE_S + 0.1
    assert world.need(3) is None


async def test_simulations_run_one_by_one_beside_the_event_loop(world):
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    together, most, times = 0, 0, 0

    def simulate():
        nonlocal together, most, times
        times += 1
        together += 1
        most = max(most, together)
        begun.release()
        assert go_on.acquire(timeout=5)
        together -= 1
        return CapacityEstimate(1.0, 2, 2)

    world.simulations.latest(LLAMA, simulate)
    world.simulations.latest(QWEN, simulate)
    await asyncio.to_thread(begun.acquire, timeout=5)
    assert world.simulations.latest(LLAMA, simulate) is None, "it is under way"
    go_on.release(3)
    assert {await world.told(), await world.told()} == {LLAMA, QWEN}
    await world.idle()
    assert (most, times) == (1, 2)


async def test_simulation_result_for_a_forgotten_macroinstance_is_discarded(world):
    go_on = threading.Event()

    def simulate():
        assert go_on.wait(5)
        return CapacityEstimate(1.0, 2, 2)

    world.simulations.latest(LLAMA, simulate)
    await asyncio.sleep(0.01)
    world.simulations.forget(LLAMA)
    world.simulations.forget(QWEN)
    go_on.set()
    world.need(3, QWEN)
    assert await world.told() == QWEN, "and before it nobody"
    assert world.need(7) is None
    assert await world.told() == LLAMA
    assert world.need(7).enough == 7


async def test_simulation_that_fails_is_counted_and_tried_again(world, caplog):
    def fail():
        raise ZeroDivisionError

    before = errors()
    world.simulations.latest(LLAMA, fail)
    await world.told()
    assert errors() == before + 1
    [line] = log_lines(caplog)
    assert (line["namespace"], line["macroinstance"]) == ("ns", "llama")
    assert world.need(3) is None
    await world.idle()
    world.now += EVERY_S
    assert world.need(3) is None
    await world.told()
    assert world.need(3).enough == 3


async def test_stop_cancels_the_simulations_that_wait(world):
    world.need(1)
    world.need(2, QWEN)
    await world.simulations.stop()
    assert not world.simulations.running
