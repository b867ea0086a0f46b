"""A cell whose instances prefill or decode, and send each other KV caches."""

from collections import deque
from functools import partial

from macroserve.core.routing.decision import RouteRequest
from macroserve.core.scaling.mitosis import high_priority_count
from macroserve.core.status import Pool
from macroserve.sim.cell import SimulatedCell
from macroserve.sim.device import SimRequest
from macroserve.sim.instance import InstanceSpec, SimulatedInstance, StepOutcome
from macroserve.sim.topology import KvTransfers, Topology


class DisaggregatedCell(SimulatedCell):
    """DistServe or MoonCake, as the strategy's ``transfer`` says.

    prefill_ratio: share of the instances that prefill; of each node's, where caches stay in the
    node. A cache leaves when its receiver has room for it, in the order in which they got ready,
    and keeps its memory with the sender until it has arrived.
    kv_bytes_per_token: what travels.
    """

    def __init__(
        self,
        engine: InstanceSpec,
        num_instances: int,
        prefill_ratio: float,
        topology: Topology,
        kv_bytes_per_token: float,
    ) -> None:
        self._transfers = KvTransfers(topology, engine.config.strategy.transfer)
        self._kv_bytes_per_token = kv_bytes_per_token
        self._ready: dict[int, deque[tuple[SimRequest, int]]] = {}
        super().__init__(engine, num_instances, prefill_ratio)
        self._numbers = {name: number for number, name in enumerate(self._instances)}
        self._beyond = [self._out_of_reach(number) for number in range(num_instances)]

    def _pools(self, num_instances: int, ratio: float) -> list[Pool]:
        size = self._transfers.domain_size(num_instances)
        if size < 2:
            raise ValueError("prefills and decodes need an instance each, within reach")
        num_high = max(1, high_priority_count(size, ratio))
        return [Pool.HP if index % size < num_high else Pool.LP for index in range(num_instances)]

    def _out_of_reach(self, sender: int) -> frozenset[str]:
        reaches = self._transfers.reaches
        return frozenset(name for name, n in self._numbers.items() if not reaches(sender, n))

    def _after(self, instance: SimulatedInstance, settled: StepOutcome) -> None:
        number = self._numbers[instance.name]
        queue = self._ready.setdefault(self._transfers.domain(number), deque())
        queue.extend((record, number) for record in settled.departing)
        if settled.departing or settled.finished:
            self._send_what_fits(settled.end_s)

    def _send_what_fits(self, now: float) -> None:
        for queue in self._ready.values():
            while queue and self._sends(*queue[0], now):
                queue.popleft()

    def _sends(self, record: SimRequest, sender: int, now: float) -> bool:
        request = record.request
        num_output = self._lengths.predict(request)
        beyond = self._beyond[sender]
        wanted = RouteRequest(request, num_output, exclude=beyond, prefilled=True)
        name = self._ledger.assign(wanted, now).instance
        assert name is not None
        receiver = self._instances[name]
        if not receiver.expect(record):
            self._ledger.settle(request.request_id)
            return False
        self._report(receiver, now)
        num_bytes = self._kv_bytes_per_token * request.num_prompt_tokens
        end_s = self._transfers.end_s(sender, self._numbers[name], num_bytes, now)
        self._events.put(end_s, partial(self._arrive, record, sender, receiver))
        return True

    def _arrive(
        self, record: SimRequest, sender: int, receiver: SimulatedInstance, now: float
    ) -> None:
        for instance in (left := self._instances[f"instance-{sender}"], receiver):
            self._settle(instance, now)
        left.send(record, now)
        self._report(left, now)
        if left.run is None:  # what waited for its memory
            self._begin(left, now)
        receiver.receive(record)
        self._go_on(receiver, now)
