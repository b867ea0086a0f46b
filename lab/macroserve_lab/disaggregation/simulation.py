"""Event loop in which prefilled requests move to the instances that decode."""

from collections import deque
from collections.abc import Sequence
from functools import partial

from macroserve.core.routing.decision import RouteRequest
from macroserve.core.scaling.mitosis import high_priority_count
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import InstanceSpec, SimulatedInstance, StepOutcome
from macroserve.sim.router import CellRouter
from macroserve.sim.simulation import Simulation
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve_lab.disaggregation.instances import DecodeInstance, PrefillInstance
from macroserve_lab.disaggregation.topology import KvTransfers


class DisaggregatedSimulation(Simulation):
    """Instances that prefill or decode, and the KV caches that move between them.

    Caches leave in the order in which their prefills ended, each as soon as an instance within
    reach has memory for it. They keep the sender's memory until they have arrived.
    """

    def __init__(
        self,
        instances: Sequence[PrefillInstance | DecodeInstance],
        config: InstanceConfig,
        transfers: KvTransfers,
        kv_bytes_per_token: float,
        *,
        trace: SimulationTrace | None = None,
    ) -> None:
        super().__init__(CellRouter(instances), config, trace=trace)
        self._transfers = transfers
        self._kv_bytes_per_token = kv_bytes_per_token
        self._numbers = {instance.name: number for number, instance in enumerate(instances)}
        self._receivers = {
            each.name: each for each in instances if isinstance(each, DecodeInstance)
        }
        self._ready: dict[int, deque[tuple[SimRequest, PrefillInstance]]] = {}
        """Requests whose prefill has ended, by domain."""

    def _place(
        self,
        request: SimRequest,
        now: float,
        *,
        offloaded: bool = False,
        exclude: frozenset[str] = frozenset(),
    ) -> None:
        super()._place(request, now, offloaded=offloaded, exclude=exclude.union(self._receivers))

    def _take_in(self, instance: SimulatedInstance, outcome: StepOutcome) -> None:
        super()._take_in(instance, outcome)
        departing: list[SimRequest] = []
        if isinstance(instance, PrefillInstance):
            departing, instance.departing = instance.departing, []
            queue = self._ready.setdefault(self._domain(instance.name), deque())
            queue.extend((request, instance) for request in departing)
        if departing or outcome.finished:
            self._send(outcome.end_s)

    def _domain(self, instance: str) -> int:
        return self._transfers.domain(self._numbers[instance])

    def _send(self, now: float) -> None:
        """Send the caches for which there is memory."""
        for queue in self._ready.values():
            while queue:
                request, sender = queue[0]
                receiver = self._receiver(request, sender, now)
                if receiver is None:
                    break
                queue.popleft()
                num_bytes = self._kv_bytes_per_token * request.request.num_prompt_tokens
                ends = self._numbers[sender.name], self._numbers[receiver.name]
                end_s = self._transfers.end_s(*ends, num_bytes, now)
                self._events.put(end_s, partial(self._receive, request, sender, receiver))

    def _receiver(
        self, request: SimRequest, sender: PrefillInstance, now: float
    ) -> DecodeInstance | None:
        """Return the instance that has reserved memory; None if the chosen one has none."""
        domain = self._domain(sender.name)
        route = RouteRequest(
            request.request,
            self._lengths.predict(request.request),
            exclude=frozenset(
                name
                for name in self.router.instances
                if name not in self._receivers or self._domain(name) != domain
            ),
        )
        name = self.router.assign(route, now)
        assert name is not None, "each domain has an instance that decodes"
        receiver = self._receivers[name]
        if not receiver.expect(request, now):
            self.router.ledger(name).settle(request.request.request_id)
            return None
        self.router.report(receiver, now)
        return receiver

    def _receive(
        self, request: SimRequest, sender: PrefillInstance, receiver: DecodeInstance, now: float
    ) -> None:
        for instance in (sender, receiver):
            self._advance(instance, now)
        sender.release(request)
        self.router.report(sender, now)
        if sender.active is None:  # Requests may have waited for the memory.
            self._begin(sender, now)
        receiver.receive(request)
        self._go_on(receiver, now)


def disaggregated_cell(
    spec: InstanceSpec,
    num_instances: int,
    prefill_ratio: float,
    transfers: KvTransfers,
    kv_bytes_per_token: float,
    *,
    prefill_spec: InstanceSpec | None = None,
    trace: SimulationTrace | None = None,
) -> DisaggregatedSimulation:
    """Return a simulation of a cell whose instances prefill or decode.

    prefill_ratio: Share of each domain's instances that prefill, of which there is at least one.
    prefill_spec: Spec of the instances that prefill; None if it is that of the others.

    Raises ValueError where a domain has a single instance.
    """
    size = transfers.domain_size(num_instances)
    if size < 2:
        raise ValueError("prefills and decodes need an instance each, within reach")
    num_prefill = max(1, high_priority_count(size, prefill_ratio))
    instances = [
        PrefillInstance(f"instance-{index}", prefill_spec or spec)
        if index % size < num_prefill
        else DecodeInstance(f"instance-{index}", spec)
        for index in range(num_instances)
    ]
    return DisaggregatedSimulation(
        instances, spec.config, transfers, kv_bytes_per_token, trace=trace
    )
