"""Whatever is in the way, the wish is reached."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st
from support.played_api import Raw
from support.played_deployment import PlayedDeployment, resource
from support.played_rounds import condition, settle

from macroserve.operator.k8s import names
from macroserve.operator.k8s.client import ApiError
from macroserve.operator.k8s.kinds import POD

Act = Callable[[PlayedDeployment], None]


def _of_a_pod(act: Callable[[PlayedDeployment, Raw], None]) -> Callable[[int], Act]:
    def for_number(number: int) -> Act:
        def acted(played: PlayedDeployment) -> None:
            pods = [pod for _, pod in sorted(played.pods().items())]
            if pods:
                act(played, pods[number % len(pods)])

        return acted

    return for_number


def _work(played: PlayedDeployment, pod: Raw) -> None:
    if engine := played.engines.get(pod["metadata"]["name"]):
        engine.tokens = 0 if engine.tokens else 500


def _delete(played: PlayedDeployment, pod: Raw) -> None:
    pod["metadata"].setdefault("deletionTimestamp", played.now.isoformat())
    played.api.put(POD, pod)


def _time_passes(played: PlayedDeployment) -> None:
    played.now += timedelta(seconds=20)


def _break(after: int) -> Act:
    """The call so many calls from now fails, and the next round finds what that left."""

    def broken(played: PlayedDeployment) -> None:
        left = [after]

        def count(what: str) -> None:
            left[0] -= 1
            if left[0] == 0 and what.startswith("/"):
                raise aiohttp.ClientConnectionError("cut")
            if left[0] == 0:
                raise ApiError(None, "cut")

        played.api.before_call = played.before_request = count

    return broken


numbers = st.integers(0, 9)
acts = st.one_of(
    st.builds(lambda n: lambda played: played.apply(resource(n)), st.integers(1, 9)),
    numbers.map(_of_a_pod(_work)),
    numbers.map(_of_a_pod(_delete)),
    numbers.map(_of_a_pod(lambda played, pod: played.crash(pod))),
    numbers.map(_of_a_pod(lambda played, pod: played.fail(pod))),
    numbers.map(_of_a_pod(lambda played, pod: played.end(pod))),
    numbers.map(_of_a_pod(lambda played, pod: played.lose(pod, kubelet_only=False))),
    numbers.map(_of_a_pod(lambda played, pod: played.lose(pod, kubelet_only=True))),
    st.integers(1, 12).map(_break),
    st.sampled_from(
        [
            PlayedDeployment.kubelets,
            PlayedDeployment.restarted,
            PlayedDeployment.restart_head,
            _time_passes,
        ]
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(acts, st.booleans()), max_size=25), st.integers(1, 8))
def test_the_wish_is_reached_and_no_work_is_cut_off(
    history: list[tuple[Act, bool]], wanted: int
) -> None:
    """history: what happens between rounds, and whether the operator is killed after the round."""
    played = PlayedDeployment()
    played.apply(resource(3))

    async def live() -> None:
        reconciler = played.reconciler()
        for act, is_killed in history:
            act(played)
            try:
                await played.round(reconciler)
            except ApiError:
                is_killed = True
            if is_killed:
                reconciler = played.reconciler()
        played.api.before_call = played.before_request = lambda what: None
        for engine in played.engines.values():
            engine.tokens = 0
        played.apply(resource(wanted))
        await settle(played, played.reconciler())

    asyncio.run(live())
    assert played.cut == []
    pods = played.pods()
    assert len(pods) == wanted
    members = [name for cell in played.cells.values() for name in cell]
    assert Counter(members) == Counter(pods.keys())
    assert all(len(cell) <= 4 for cell in played.cells.values())
    for name, pod in pods.items():
        assert name in played.cells[pod["metadata"]["labels"][names.CELL]]
    assert condition(played, "Ready")["status"] == "True"
