"""Hand requests over from the instances that prefill to those that decode (DistServe, MoonCake)."""

from collections import deque
from typing import NamedTuple

from macroserve.core.routing.decision import RouteRequest
from macroserve.core.scaling.mitosis import high_priority_count
from macroserve.core.scheduler.estimators import LengthPredictor
from macroserve.core.status import Pool
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import SimulatedInstance
from macroserve.sim.router import Router
from macroserve.sim.topology import KvTransfers


class KvArrived(NamedTuple):
    """The event that a KV cache has arrived."""

    request: SimRequest
    sender: SimulatedInstance
    receiver: SimulatedInstance


class KvHandover:
    """The handover keeps prefilled requests until an instance within reach has memory for their KV
    cache.

    Caches leave in the order in which their prefills ended, and keep the sender's memory until they
    have arrived.
    """

    def __init__(self, transfers: KvTransfers, kv_bytes_per_token: float, router: Router) -> None:
        self._transfers = transfers
        self._kv_bytes_per_token = kv_bytes_per_token
        self._router = router
        self._ready: dict[int, deque[tuple[SimRequest, SimulatedInstance]]] = {}
        self._numbers = {name: number for number, name in enumerate(router.instances)}
        self._out_of_reach = {
            name: frozenset(
                other for other, n in self._numbers.items() if not transfers.reaches(number, n)
            )
            for name, number in self._numbers.items()
        }

    def add(self, requests: list[SimRequest], sender: SimulatedInstance) -> None:
        """Queue requests whose prefill has ended."""
        domain = self._transfers.domain(self._numbers[sender.name])
        queue = self._ready.setdefault(domain, deque())
        queue.extend((request, sender) for request in requests)

    def send(self, lengths: LengthPredictor, now: float) -> list[tuple[float, KvArrived]]:
        """Send the caches for which there is memory. Return when each cache arrives."""
        sent: list[tuple[float, KvArrived]] = []
        for queue in self._ready.values():
            while queue:
                request, sender = queue[0]
                receiver = self._receiver(request, sender, lengths, now)
                if receiver is None:
                    break
                num_bytes = self._kv_bytes_per_token * request.request.num_prompt_tokens
                ends = self._numbers[sender.name], self._numbers[receiver.name]
                end_s = self._transfers.end_s(*ends, num_bytes, now)
                sent.append((end_s, KvArrived(request, sender, receiver)))
                queue.popleft()
        return sent

    def _receiver(
        self, request: SimRequest, sender: SimulatedInstance, lengths: LengthPredictor, now: float
    ) -> SimulatedInstance | None:
        """Return the instance that has reserved memory; None if the chosen one has none."""
        route = RouteRequest(
            request.request,
            lengths.predict(request.request),
            exclude=self._out_of_reach[sender.name],
            prefilled=True,
        )
        name = self._router.assign(route, now)
        assert name is not None
        receiver = self._router.instances[name]
        if not receiver.expect(request):
            self._router.ledger(name).settle(request.request.request_id)
            return None
        self._router.report(receiver, now)
        return receiver


def handover_pools(transfers: KvTransfers, num_instances: int, prefill_ratio: float) -> list[Pool]:
    """Return HP for the instances that prefill: their share of each domain, at least one.

    Raises ValueError where a domain has a single instance.
    """
    size = transfers.domain_size(num_instances)
    if size < 2:
        raise ValueError("prefills and decodes need an instance each, within reach")
    num_high = max(1, high_priority_count(size, prefill_ratio))
    return [Pool.HP if index % size < num_high else Pool.LP for index in range(num_instances)]
