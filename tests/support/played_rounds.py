"""Rounds of a played deployment, and what they come to."""

import asyncio
from datetime import timedelta

from support.played_api import Raw
from support.played_deployment import PlayedDeployment

from macroserve.operator.k8s.kinds import EVENT
from macroserve.operator.reconcile.reconciler import Reconciler
from macroserve.operator.render.served_tls import PLAIN, ServedTls

MAX_ROUNDS = 60


async def settle(played: PlayedDeployment, reconciler: Reconciler) -> None:
    """Rounds and nodes take turns until there is nothing to do, also when budgets are over."""
    idle = 0
    for _ in range(MAX_ROUNDS):
        played.api.calls.clear()
        played.requests.clear()
        await played.round(reconciler)
        played.kubelets()
        played.restarted()
        played.now += timedelta(seconds=60)
        changes = [call for call in played.api.calls if not call.startswith("get")]
        idle = 0 if changes or orders(played) else idle + 1
        if idle == 5:
            return
    raise AssertionError(f"still busy: {played.api.calls} {orders(played)}")


def fewest_staying(played: PlayedDeployment, reconciler: Reconciler) -> int:
    """Return how many pods at least were not about to end, over MAX_ROUNDS rounds of a minute."""
    fewest = len(played.pods())
    for _ in range(MAX_ROUNDS):
        asyncio.run(played.round(reconciler))
        staying = [p for p in played.pods().values() if "deletionTimestamp" not in p["metadata"]]
        fewest = min(fewest, len(staying))
        played.kubelets()
        played.now += timedelta(seconds=60)
    return fewest


def orders(played: PlayedDeployment) -> list[str]:
    return [request for request in played.requests if not request.startswith("GET")]


def settled(wanted: Raw, served_tls: ServedTls = PLAIN) -> tuple[PlayedDeployment, Reconciler]:
    played = PlayedDeployment(served_tls=served_tls)
    played.apply(wanted)
    reconciler = played.reconciler()
    asyncio.run(settle(played, reconciler))
    return played, reconciler


def cells(played: PlayedDeployment) -> dict[str, set[str]]:
    return {cell: set(members) for cell, members in played.cells.items()}


def condition(played: PlayedDeployment, kind: str) -> Raw:
    found = played.resource()
    assert found is not None
    return next(c for c in found["status"]["conditions"] if c["type"] == kind)


def events(played: PlayedDeployment) -> set[str]:
    return {event["reason"] for event in played.api.all(EVENT)}
