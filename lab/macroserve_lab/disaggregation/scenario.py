"""Scenario of a cell whose instances prefill or decode, and the strategies of such cells."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from macroserve.core.routing.policies import least_load_route
from macroserve.core.scheduler.batching.baselines import prefill_first_batch
from macroserve.core.strategy import Ordering, Strategy
from macroserve.sim.hardware.devices import Device
from macroserve.sim.scenario import Scenario
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve.workload.arrivals import Arrival
from macroserve_lab.disaggregation.simulation import DisaggregatedSimulation, disaggregated_cell
from macroserve_lab.disaggregation.topology import KvTransfers, Topology, Transfer


@dataclass(frozen=True, slots=True)
class Disaggregated(Strategy):
    """Strategy under which prompts are prefilled on some instances and responses decoded on others,
    each time on the least loaded one."""

    transfer: Transfer = Transfer.NETWORK


DISTSERVE, MOONCAKE = (
    Disaggregated(name, prefill_first_batch, least_load_route, Ordering.FCFS, transfer=transfer)
    for name, transfer in (("distserve", Transfer.NODE), ("mooncake", Transfer.NETWORK))
)


@dataclass(frozen=True, slots=True)
class DisaggregatedScenario(Scenario):
    """Cluster under a strategy that transfers KV caches; prompts share no blocks.

    high_priority_ratio: share of the instances that prefill.
    topology: nodes and links over which instances send KV caches.
    prefill_device: device of the instances that prefill; None if it is that of the others.
    """

    strategy: Disaggregated
    prefix_caching: bool = False
    _: KW_ONLY
    topology: Topology
    prefill_device: Device | None = None

    def simulation(
        self, arrivals: Sequence[Arrival], seed: int = 0, trace: SimulationTrace | None = None
    ) -> DisaggregatedSimulation:
        cluster, spec, prefill_spec = self.cluster, self.instance_spec(arrivals, seed), None
        if self.prefill_device is not None:
            prefills = replace(self, cluster=replace(cluster, device=self.prefill_device))
            prefill_spec = prefills.instance_spec(arrivals, seed)
        return disaggregated_cell(
            spec,
            cluster.num_instances,
            self.high_priority_ratio,
            KvTransfers(self.topology, self.strategy.transfer),
            cluster.shape.kv_bytes_per_token,
            prefill_spec=prefill_spec,
            trace=trace,
        )
