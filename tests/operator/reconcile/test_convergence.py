"""Reconciles reach the desired fleet after any events."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import aiohttp
from hypothesis import given
from hypothesis import strategies as st
from support.fake_api_server import Raw
from support.fake_deployment import FakeDeployment, resource
from support.fake_reconciles import condition, settle

from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import POD

Act = Callable[[FakeDeployment], None]


def _of_a_pod(act: Callable[[FakeDeployment, Raw], None]) -> Callable[[int], Act]:
    def for_number(number: int) -> Act:
        def acted(fake: FakeDeployment) -> None:
            pods = [pod for _, pod in sorted(fake.pods().items())]
            if pods:
                act(fake, pods[number % len(pods)])

        return acted

    return for_number


def _work(fake: FakeDeployment, pod: Raw) -> None:
    if engine := fake.engines.get(pod["metadata"]["name"]):
        engine.tokens = 0 if engine.tokens else 500


def _delete(fake: FakeDeployment, pod: Raw) -> None:
    pod["metadata"].setdefault("deletionTimestamp", fake.now.isoformat())
    fake.api.put(POD, pod)


def _time_passes(fake: FakeDeployment) -> None:
    fake.now += timedelta(seconds=20)


def _break(after: int) -> Act:
    """Let the call after ``after`` others fail."""

    def broken(fake: FakeDeployment) -> None:
        left = [after]

        def count(what: str) -> None:
            left[0] -= 1
            if left[0] == 0 and what.startswith("/"):
                raise aiohttp.ClientConnectionError("cut")
            if left[0] == 0:
                raise ApiError(None, "cut")

        fake.api.before_call = fake.before_request = count

    return broken


numbers = st.integers(0, 9)
acts = st.one_of(
    st.builds(lambda n: lambda fake: fake.apply(resource(n)), st.integers(1, 9)),
    numbers.map(_of_a_pod(_work)),
    numbers.map(_of_a_pod(_delete)),
    numbers.map(_of_a_pod(lambda fake, pod: fake.crash(pod))),
    numbers.map(_of_a_pod(lambda fake, pod: fake.fail(pod))),
    numbers.map(_of_a_pod(lambda fake, pod: fake.end(pod))),
    numbers.map(_of_a_pod(lambda fake, pod: fake.lose(pod, kubelet_only=False))),
    numbers.map(_of_a_pod(lambda fake, pod: fake.lose(pod, kubelet_only=True))),
    st.integers(1, 12).map(_break),
    st.sampled_from(
        [
            FakeDeployment.kubelets,
            FakeDeployment.restarted,
            FakeDeployment.restart_head,
            _time_passes,
        ]
    ),
)


@given(st.lists(st.tuples(acts, st.booleans()), max_size=25), st.integers(1, 8))
def test_fleet_after_any_history_converges_and_cuts_no_request_off(
    history: list[tuple[Act, bool]], wanted: int
) -> None:
    """A history lists what happens between reconciles, and whether the operator is killed after
    one."""
    fake = FakeDeployment()
    fake.apply(resource(3))

    async def live() -> None:
        reconciler = fake.reconciler()
        for act, is_killed in history:
            act(fake)
            try:
                await fake.reconcile(reconciler)
            except ApiError:
                is_killed = True
            if is_killed:
                reconciler = fake.reconciler()
        fake.api.before_call = fake.before_request = lambda what: None
        for engine in fake.engines.values():
            engine.tokens = 0
        fake.apply(resource(wanted))
        await settle(fake, fake.reconciler())

    asyncio.run(live())
    assert fake.cut == []
    pods = fake.pods()
    assert len(pods) == wanted
    members = [name for cell in fake.cells.values() for name in cell]
    assert Counter(members) == Counter(pods.keys())
    assert all(len(cell) <= 4 for cell in fake.cells.values())
    for name, pod in pods.items():
        assert name in fake.cells[pod["metadata"]["labels"][names.CELL]]
    assert condition(fake, "Ready")["status"] == "True"
