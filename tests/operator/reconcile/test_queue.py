"""WorkQueue: how often they look, what wakes them, and that none holds up another."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from support.virtual_time import run

from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.names import Key
from macroserve.operator.reconcile.queue import MAX_WAIT_S, ROUND_TIMEOUT_S, WorkQueue
from macroserve.operator.reconcile.reconciler import Reconciler, Requeue

LLAMA, QWEN = Key("team", "llama"), Key("team", "qwen")


def resource(key: Key = LLAMA, generation: int = 1, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "uid": f"uid-{key.name}",
            "generation": generation,
            **metadata,
        }
    }


@pytest.fixture(autouse=True)
def the_same_waits_each_time() -> None:
    """They are random, and one in a hundred would end just when a test looks."""
    random.seed(1)


class Rounds:
    """Stands for a Reconciler. outcome: what its next rounds come to."""

    def __init__(self, resource: Any) -> None:
        self.uid = resource["metadata"]["uid"]
        self.times: list[float] = []
        self.seen: list[Any] = []
        self.outcome: Callable[[], Any] = lambda: Requeue.LATER
        self.takes_s = 0.0

    async def round(self, resource: Any) -> Requeue:
        self.times.append(asyncio.get_running_loop().time())
        self.seen.append(resource)
        await asyncio.sleep(self.takes_s)
        return self.outcome()

    @property
    def waits(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


class Scene:
    def __init__(self) -> None:
        self.made: dict[str, Rounds] = {}
        self.forgotten: list[Key] = []
        self.on_forget: Callable[[], None] = lambda: None
        self.loops = WorkQueue(self._make, self._forget)
        self.leading: asyncio.Task[None] | None = None

    @classmethod
    def of_one(cls) -> "Scene":
        """One MacroInstance, and a leader who looks after it."""
        scene = cls()
        scene.loops.changed(resource())
        scene.lead()
        return scene

    def _make(self, resource: Any) -> Reconciler:
        rounds = self.made[resource["metadata"]["name"]] = Rounds(resource)
        return cast(Reconciler, rounds)

    def _forget(self, key: Key) -> None:
        self.forgotten.append(key)
        self.on_forget()

    def lead(self) -> None:
        self.leading = asyncio.create_task(self.loops.lead())

    async def rest(self) -> None:
        assert self.leading is not None
        self.leading.cancel()
        await asyncio.gather(self.leading, return_exceptions=True)


def raising(error: BaseException) -> Callable[[], Any]:
    def outcome() -> Any:
        raise error

    return outcome


def test_only_the_leader_looks() -> None:
    async def main() -> None:
        scene = Scene()
        scene.loops.changed(resource())
        await asyncio.sleep(60)
        assert scene.made == {}
        scene.lead()
        await asyncio.sleep(1)
        assert len(scene.made["llama"].times) == 1
        await scene.rest()
        count = len(scene.made["llama"].times)
        await asyncio.sleep(60)
        assert len(scene.made["llama"].times) == count

    run(main())


def test_it_looks_rarely_when_nothing_happens() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        waits = scene.made["llama"].waits
        assert 0.8 <= waits[0] <= 2.6
        assert all(0.8 * MAX_WAIT_S <= wait <= 1.3 * MAX_WAIT_S for wait in waits[5:])

    run(main())


def test_it_looks_every_second_while_something_is_under_way() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        rounds = scene.made["llama"]
        rounds.outcome = lambda: Requeue.SOON
        scene.loops.wake(LLAMA)
        await asyncio.sleep(1)
        rounds.times.clear()
        await asyncio.sleep(60)
        assert all(0.8 <= wait <= 1.4 for wait in rounds.waits)

    run(main())


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"generation": 2}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, True),
        ({"finalizers": ["macroserve.io/drain"]}, True),
        ({"uid": "uid-second"}, True),
        ({"resourceVersion": "77"}, False),
        ({"annotations": {"a": "b"}}, False),
    ],
)
def test_a_change_wakes_it_at_once_but_its_own_status_does_not(
    change: dict[str, Any], wakes: bool
) -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        before = scene.made["llama"]
        before.times.clear()
        scene.loops.changed(resource(**change))
        await asyncio.sleep(0.01)
        after = scene.made["llama"]
        assert len(after.times) == int(wakes)
        assert (after is not before) == ("uid" in change)
        if wakes:
            assert after.seen[-1] == resource(**change)

    run(main())


def test_many_wakes_are_few_rounds() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        rounds = scene.made["llama"]
        rounds.times.clear()
        for _ in range(100):
            scene.loops.wake(LLAMA)
            await asyncio.sleep(0.005)
        assert 1 <= len(rounds.times) <= 6

    run(main())


def test_a_change_during_a_round_is_looked_at_after_it() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        rounds = scene.made["llama"]
        rounds.takes_s = 5
        scene.loops.wake(LLAMA)
        await asyncio.sleep(2)
        scene.loops.changed(resource(generation=2))
        await asyncio.sleep(4)
        assert rounds.seen[-1]["metadata"]["generation"] == 2

    run(main())


@pytest.mark.parametrize(
    "error", [ApiError(409, "conflict"), ApiError(None, "no answer"), ValueError("a bug")]
)
def test_one_that_fails_goes_on_and_holds_up_no_other(error: Exception) -> None:
    async def main() -> None:
        scene = Scene()
        scene.loops.changed(resource())
        scene.loops.changed(resource(QWEN))
        scene.lead()
        await asyncio.sleep(1)
        failing, fine = scene.made["llama"], scene.made["qwen"]
        failing.outcome = raising(error)
        fine.outcome = lambda: Requeue.SOON
        failing.times.clear()
        fine.times.clear()
        await asyncio.sleep(120)
        assert len(fine.times) > 80
        assert 5 <= len(failing.times) <= 20, "again, but ever more rarely"
        failing.outcome = lambda: Requeue.LATER
        scene.loops.changed(resource(generation=2))
        await asyncio.sleep(1)
        assert failing.seen[-1]["metadata"]["generation"] == 2

    run(main())


def test_its_own_events_do_not_make_a_failing_one_busy() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        rounds = scene.made["llama"]
        rounds.outcome = raising(ApiError(409, "conflict"))
        for _ in range(1000):
            scene.loops.wake(LLAMA)
            await asyncio.sleep(0.01)
        assert len(rounds.times) < 30

    run(main())


def test_a_round_that_hangs_is_given_up() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(30)
        rounds = scene.made["llama"]
        rounds.takes_s = 1e9
        scene.loops.wake(LLAMA)
        await asyncio.sleep(1)
        rounds.takes_s = 0
        rounds.times.clear()
        await asyncio.sleep(ROUND_TIMEOUT_S + 40)
        assert rounds.times

    run(main())


def test_one_that_is_gone_is_not_looked_at_any_more() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        rounds = scene.made["llama"]
        rounds.outcome = lambda: Requeue.STOP
        await asyncio.sleep(60)
        count = len(rounds.times)
        assert scene.forgotten == [LLAMA]
        assert scene.loops.resource(LLAMA) is None
        scene.loops.gone(resource())
        await asyncio.sleep(60)
        assert len(rounds.times) == count
        assert scene.forgotten == [LLAMA]

    run(main())


def test_one_that_comes_again_under_its_name_begins_anew() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        first = scene.made["llama"]
        scene.loops.gone(resource())
        await asyncio.sleep(1)
        scene.loops.changed(resource(uid="uid-second"))
        await asyncio.sleep(1)
        assert scene.made["llama"] is not first
        assert scene.made["llama"].uid == "uid-second"

    run(main())


def test_the_end_of_an_earlier_one_does_not_end_the_one_that_has_its_name() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        second = resource(uid="uid-second")
        scene.loops.changed(second)
        assert scene.forgotten == [LLAMA]
        scene.loops.gone(resource())
        assert scene.loops.resource(LLAMA) == second
        assert scene.forgotten == [LLAMA]
        await asyncio.sleep(1)
        assert scene.made["llama"].uid == "uid-second"

    run(main())


def test_one_that_comes_again_during_its_last_round_is_looked_after() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(30)
        first = scene.made["llama"]
        first.outcome, first.takes_s = lambda: Requeue.STOP, 5
        scene.loops.wake(LLAMA)
        await asyncio.sleep(1)
        scene.loops.changed(resource(uid="uid-second"))
        await asyncio.sleep(10)
        assert scene.made["llama"].uid == "uid-second"

    run(main())


def test_one_that_comes_again_just_after_its_last_round_is_looked_after() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(30)
        scene.made["llama"].outcome = lambda: Requeue.STOP
        # Told from within the round's end: its task is not known to be done then.
        scene.on_forget = lambda: scene.loops.changed(resource(uid="uid-second"))
        scene.loops.wake(LLAMA)
        await asyncio.sleep(10)
        assert scene.made["llama"].uid == "uid-second"

    run(main())


def test_whoever_leads_again_knows_what_came_meanwhile() -> None:
    async def main() -> None:
        scene = Scene()
        scene.lead()
        await asyncio.sleep(1)
        assert scene.loops.is_leading
        await scene.rest()
        assert not scene.loops.is_leading
        scene.loops.changed(resource())
        scene.loops.changed(resource(QWEN))
        scene.loops.gone(resource(QWEN))
        scene.lead()
        await asyncio.sleep(1)
        assert set(scene.made) == {"llama"}

    run(main())
