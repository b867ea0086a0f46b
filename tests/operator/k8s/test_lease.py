"""A single replica leads at a time; another takes over soon, and never before the first has
stopped."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from support.fake_api_server import FakeApiServer
from support.virtual_time import run

from macroserve.operator.k8s.client import Api, ApiError
from macroserve.operator.k8s.kinds import LEASE
from macroserve.operator.k8s.lease import GIVE_UP_S, LEASE_S, Leader

TAKEOVER_S = 15.0


class Replica:
    """A replica that records when it began to lead and when it was stopped."""

    def __init__(self, api: FakeApiServer, name: str) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.api = api
        clock = asyncio.get_running_loop().time
        self._leader = Leader(cast(Api, api), "system", name, clock)
        self.task = asyncio.create_task(self._leader.run(self._lead))

    @property
    def leads(self) -> bool:
        return len(self.began) > len(self.ended)

    async def _lead(self) -> None:
        now = asyncio.get_running_loop().time
        self.began.append(now())
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(now())

    async def stop(self) -> None:
        """Cancel the replica, as SIGTERM does."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Cut(FakeApiServer):
    """An API server with a connection that can be cut; each call takes the same time."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server
        self.is_cut = False
        self.takes_s = 0.0

    async def get(self, *args: Any) -> Any:
        return await self._through(lambda: self._server.get(*args))

    async def create(self, *args: Any) -> Any:
        return await self._through(lambda: self._server.create(*args))

    async def replace(self, *args: Any) -> Any:
        return await self._through(lambda: self._server.replace(*args))

    async def _through(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self.takes_s)
        if self.is_cut:
            raise ApiError(None, "no answer")
        return await call()


def lease(api: FakeApiServer) -> dict[str, Any]:
    (found,) = api.all(LEASE)
    return found["spec"]


def test_second_replica_waits_while_the_first_leads() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        first = Replica(api, "first")
        await asyncio.sleep(1)
        second = Replica(api, "second")
        await asyncio.sleep(100)
        assert (first.leads, second.leads) == (True, False)
        assert lease(api)["holderIdentity"] == "first"
        assert lease(api)["leaseDurationSeconds"] == LEASE_S
        assert lease(api)["leaseTransitions"] == 1

    run(scene())


def test_replicas_that_start_together_have_one_leader() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        replicas = [Replica(api, f"replica-{number}") for number in range(5)]
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert sum(replica.leads for replica in replicas) <= 1
        assert sum(replica.leads for replica in replicas) == 1

    run(scene())


def test_lease_of_a_killed_leader_is_taken_over_in_time() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        first_way = Cut(api)
        first = Replica(first_way, "first")
        await asyncio.sleep(1)
        second = Replica(api, "second")
        await asyncio.sleep(20)
        killed_at = asyncio.get_running_loop().time()
        first_way.is_cut = True
        first.task.cancel()
        await asyncio.sleep(TAKEOVER_S)
        assert second.leads
        assert LEASE_S - 2 <= second.began[0] - killed_at < TAKEOVER_S

    run(scene())


def test_leader_that_is_stopped_gives_the_lease_back() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        first, second = Replica(api, "first"), Replica(api, "second")
        await asyncio.sleep(20)
        stopped_at = asyncio.get_running_loop().time()
        await first.stop()
        await asyncio.sleep(3)
        assert second.leads
        assert second.began[0] - stopped_at <= 1.0

    run(scene())


@pytest.mark.parametrize("fails_after_s", [0.0, 0.8, 1.4, 3600.0])
@pytest.mark.parametrize("cut_at", [20.0, 20.7, 21.3, 21.9])
def test_leader_that_cannot_renew_stops_before_another_begins(
    fails_after_s: float, cut_at: float
) -> None:
    async def scene() -> None:
        api = FakeApiServer()
        first_way = Cut(api)
        first = Replica(first_way, "first")
        await asyncio.sleep(1)
        second = Replica(api, "second")
        await asyncio.sleep(cut_at - 1)
        first_way.takes_s = fails_after_s
        first_way.is_cut = True
        await asyncio.sleep(20)
        assert not first.leads
        assert second.leads
        assert first.ended[0] - cut_at <= GIVE_UP_S
        assert first.ended[0] < second.began[0]
        first_way.is_cut, first_way.takes_s = False, 0.0
        await asyncio.sleep(60)
        assert (first.leads, second.leads) == (False, True)

    run(scene())


def test_leader_counts_its_time_from_before_a_renewal() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        way = Cut(api)
        first = Replica(way, "first")
        renewals: list[float] = []

        def note(verb: str) -> None:
            if verb == "replace":
                renewals.append(asyncio.get_running_loop().time())

        api.before_call = note
        way.takes_s = 1.4
        await asyncio.sleep(60)
        way.is_cut = True
        await asyncio.sleep(20)
        assert first.ended[0] - renewals[-1] <= GIVE_UP_S - 1.4

    run(scene())


def test_leader_that_finds_another_holder_stops() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        first = Replica(api, "first")
        await asyncio.sleep(20)
        (found,) = api.all(LEASE)
        found["spec"] |= {"holderIdentity": "other", "leaseDurationSeconds": 3600}
        api.put(LEASE, found)
        await asyncio.sleep(GIVE_UP_S + 1)
        assert not first.leads

    run(scene())


def test_restarted_container_takes_its_own_lease_back_at_once() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        first_way = Cut(api)
        first = Replica(first_way, "same-pod")
        await asyncio.sleep(20)
        first_way.is_cut = True
        first.task.cancel()
        await asyncio.sleep(0.5)
        again = Replica(api, "same-pod")
        await asyncio.sleep(0.5)
        assert again.leads

    run(scene())


def test_leader_after_a_conflict_tries_again_and_leads_on() -> None:
    async def scene() -> None:
        api = FakeApiServer()
        calls = [0]

        def refuse(verb: str) -> None:
            calls[0] += 1
            if verb == "replace" and calls[0] % 3:
                raise ApiError(409, "the object has been modified", "Conflict")

        api.before_call = refuse
        first = Replica(api, "first")
        await asyncio.sleep(120)
        assert first.leads
        assert len(first.began) == 1

    run(scene())


def test_error_while_leading_is_raised() -> None:
    async def scene() -> None:
        async def lead() -> None:
            raise RuntimeError("a bug")

        api = FakeApiServer()
        leader = Leader(cast(Api, api), "system", "first", asyncio.get_running_loop().time)
        with pytest.raises(RuntimeError, match="a bug"):
            await leader.run(lead)
        assert lease(api)["holderIdentity"] == ""

    run(scene())
