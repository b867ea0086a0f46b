"""The work queue reconciles in time, and no MacroInstance delays another."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY
from support.virtual_time import run

from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.names import Key
from macroserve.operator.reconcile.queue import MAX_WAIT_S, RECONCILE_TIMEOUT_S, WorkQueue
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
    """Make the random waits equal: one in a hundred would end exactly when a test looks."""
    random.seed(1)


class FakeReconciler:
    """A fake Reconciler; `outcome` has the results of its next reconciles."""

    def __init__(self, resource: Any) -> None:
        self.uid = resource["metadata"]["uid"]
        self.times: list[float] = []
        self.seen: list[Any] = []
        self.outcome: Callable[[], Any] = lambda: Requeue.LATER
        self.takes_s = 0.0

    async def reconcile(self, resource: Any) -> Requeue:
        self.times.append(asyncio.get_running_loop().time())
        self.seen.append(resource)
        await asyncio.sleep(self.takes_s)
        return self.outcome()

    @property
    def waits(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


class Scene:
    def __init__(self) -> None:
        self.made: dict[str, FakeReconciler] = {}
        self.forgotten: list[Key] = []
        self.on_forget: Callable[[], None] = lambda: None
        self.loops = WorkQueue(self._make, self._forget)
        self.leading: asyncio.Task[None] | None = None

    @classmethod
    def of_one(cls) -> "Scene":
        """Return a scene with one MacroInstance and a leader that reconciles it."""
        scene = cls()
        scene.loops.changed(resource())
        scene.lead()
        return scene

    def _make(self, resource: Any) -> Reconciler:
        reconciler = self.made[resource["metadata"]["name"]] = FakeReconciler(resource)
        return cast(Reconciler, reconciler)

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


def test_queue_reconciles_only_while_it_leads() -> None:
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


def test_queue_without_changes_reconciles_rarely() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        waits = scene.made["llama"].waits
        assert 0.8 <= waits[0] <= 2.6
        assert all(0.8 * MAX_WAIT_S <= wait <= 1.3 * MAX_WAIT_S for wait in waits[5:])

    run(main())


def test_queue_during_an_action_reconciles_every_second() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        reconciler = scene.made["llama"]
        reconciler.outcome = lambda: Requeue.SOON
        scene.loops.wake(LLAMA)
        await asyncio.sleep(1)
        reconciler.times.clear()
        await asyncio.sleep(60)
        assert all(0.8 <= wait <= 1.4 for wait in reconciler.waits)

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
def test_change_wakes_the_queue_and_the_own_status_does_not(
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


def test_many_changes_cause_few_reconciles() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        reconciler = scene.made["llama"]
        reconciler.times.clear()
        for _ in range(100):
            scene.loops.wake(LLAMA)
            await asyncio.sleep(0.005)
        assert 1 <= len(reconciler.times) <= 6

    run(main())


def test_change_during_a_reconcile_causes_another() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(300)
        reconciler = scene.made["llama"]
        reconciler.takes_s = 5
        scene.loops.wake(LLAMA)
        await asyncio.sleep(2)
        scene.loops.changed(resource(generation=2))
        await asyncio.sleep(4)
        assert reconciler.seen[-1]["metadata"]["generation"] == 2

    run(main())


@pytest.mark.parametrize(
    "error", [ApiError(409, "conflict"), ApiError(None, "no answer"), ValueError("a bug")]
)
def test_reconcile_that_fails_is_repeated_and_holds_up_no_other(error: Exception) -> None:
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


def test_own_changes_of_a_failing_reconcile_do_not_skip_its_backoff() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        reconciler = scene.made["llama"]
        reconciler.outcome = raising(ApiError(409, "conflict"))
        for _ in range(1000):
            scene.loops.wake(LLAMA)
            await asyncio.sleep(0.01)
        assert len(reconciler.times) < 30

    run(main())


def reactions() -> tuple[float, float]:
    """Return the number of changes that were acted on, and the sum of their times."""
    name = "macroserve_operator_reaction_seconds"
    counts = (REGISTRY.get_sample_value(f"{name}_{part}") for part in ("count", "sum"))
    num, sum_s = (count or 0.0 for count in counts)
    return num, sum_s


def test_reaction_to_a_change_lasts_until_a_reconcile_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr("macroserve.operator.reconcile.queue.time", clock)

    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        reconciler = scene.made["llama"]
        num_before, before_s = reactions()
        reconciler.outcome = raising(ApiError(409, "conflict"))
        scene.loops.changed(resource(generation=2))
        await asyncio.sleep(20)
        assert reactions() == (num_before, before_s)
        reconciler.outcome = lambda: Requeue.LATER
        await asyncio.sleep(60)
        num, sum_s = reactions()
        assert num == num_before + 1, "reconciles without a change are no reactions"
        assert 20 <= sum_s - before_s <= 20 + 1.3 * MAX_WAIT_S

    run(main())


def test_reconcile_that_hangs_is_cancelled() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(30)
        reconciler = scene.made["llama"]
        reconciler.takes_s = 1e9
        scene.loops.wake(LLAMA)
        await asyncio.sleep(1)
        reconciler.takes_s = 0
        reconciler.times.clear()
        await asyncio.sleep(RECONCILE_TIMEOUT_S + 40)
        assert reconciler.times

    run(main())


def test_deleted_macroinstance_is_not_reconciled_any_more() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(1)
        reconciler = scene.made["llama"]
        reconciler.outcome = lambda: Requeue.STOP
        await asyncio.sleep(60)
        count = len(reconciler.times)
        assert scene.forgotten == [LLAMA]
        assert scene.loops.resource(LLAMA) is None
        scene.loops.gone(resource())
        await asyncio.sleep(60)
        assert len(reconciler.times) == count
        assert scene.forgotten == [LLAMA]

    run(main())


def test_macroinstance_created_again_under_its_name_starts_anew() -> None:
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


def test_deletion_of_an_earlier_macroinstance_keeps_the_one_of_its_name() -> None:
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


def test_macroinstance_created_again_during_its_last_reconcile_is_reconciled() -> None:
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


def test_macroinstance_created_again_after_its_last_reconcile_is_reconciled() -> None:
    async def main() -> None:
        scene = Scene.of_one()
        await asyncio.sleep(30)
        scene.made["llama"].outcome = lambda: Requeue.STOP
        # Told from within the reconcile's end: its task is not known to be done then.
        scene.on_forget = lambda: scene.loops.changed(resource(uid="uid-second"))
        scene.loops.wake(LLAMA)
        await asyncio.sleep(10)
        assert scene.made["llama"].uid == "uid-second"

    run(main())


def test_queue_that_leads_again_knows_the_changes_meanwhile() -> None:
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
