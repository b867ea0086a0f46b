"""A scenario: a model on a number of instances of some devices, under a strategy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import ceil
from random import Random

from macroserve.core.latency import LatencyModel
from macroserve.core.request import Slo
from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.scheduler.blocks import BlockGroup
from macroserve.core.scheduler.config import InstanceConfig
from macroserve.core.shapes import ModelShape
from macroserve.core.status import Pool
from macroserve.core.strategy import Strategy
from macroserve.core.tuning import DEFAULT_TUNING, Tuning
from macroserve.sim.hardware.devices import Device
from macroserve.sim.hardware.host import VLLM_HOST, Host
from macroserve.sim.hardware.links import Link
from macroserve.sim.hardware.pipeline import Pipeline
from macroserve.sim.hardware.step_time import StepTime
from macroserve.sim.instance import InstanceSpec
from macroserve.sim.results import WHEN_DECIDED, RunResult, SloRule, StopRule, as_client
from macroserve.sim.rival_routing import RivalRouter, Routing
from macroserve.sim.router import FleetRouter, cell_instances
from macroserve.sim.simulation import Simulation, single_cell
from macroserve.sim.simulation_trace import SimulationTrace
from macroserve.workload.arrivals import Arrival

MEMORY_SHARE = 0.9
"""Share of a device's memory for weights, cache and activations (vLLM's default)."""

ACTIVATION_BYTES = 1e9
"""Bytes per device for the activations of the largest batch."""

BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
MAX_BATCH_TOKENS = 4096
MAX_MODEL_LEN = 8192

NOISE = 0.03
"""Relative standard deviation of step times."""

NUM_NOISES = 4093
"""Number of noise factors, which are drawn once and used in turn."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A model on a number of equal instances."""

    model: ModelShape
    """Shape of the whole model."""
    device: Device
    link: Link
    """Link between the devices that share a layer."""
    ranks: int
    """Devices per stage, which share every layer."""
    num_instances: int
    kv_bytes: float | None = None
    """Size of an instance's cache; None for the remaining memory."""
    block_size: int = BLOCK_SIZE
    max_model_len: int = MAX_MODEL_LEN
    max_num_seqs: int = MAX_NUM_SEQS
    max_batch_tokens: int = MAX_BATCH_TOKENS
    host: Host = VLLM_HOST
    stages: int = 1
    """Pipeline stages of an instance, all on one node."""

    @property
    def num_devices(self) -> int:
        """Return the devices per instance."""
        return self.ranks * self.stages

    @property
    def shape(self) -> ModelShape:
        return replace(self.model, tensor_parallel=self.ranks)

    @property
    def num_kv_tokens(self) -> int:
        """Return the capacity of an instance's cache, tokens. Raises ValueError if the weights
        leave no memory for it."""
        num_tokens = self._num_kv_tokens
        if not self.has_memory:
            raise ValueError(
                f"weights of {self.shape.weight_bytes / 1e9:.0f} GB leave no memory for a cache on "
                f"{self.num_devices} x {self.device.name}"
            )
        return num_tokens

    @property
    def has_memory(self) -> bool:
        """Return whether the weights leave memory for a cache."""
        return self._num_kv_tokens >= self.block_size

    @property
    def _num_kv_tokens(self) -> int:
        free = self.kv_bytes
        if free is None:
            memory = self.num_devices * (MEMORY_SHARE * self.device.memory_bytes - ACTIVATION_BYTES)
            free = memory - self.shape.weight_bytes
        return int(free / self.shape.kv_bytes_per_token)

    @property
    def block_groups(self) -> tuple[BlockGroup, ...]:
        """Return the equal groups of layers that vLLM forms for a model with windows."""
        if not (window := self.model.window):
            return ()
        size, num_windowed = self.block_size, window.num_layers
        most = [
            ceil((window.num_tokens + num_tokens) / size) + 1
            for num_tokens in (self.max_batch_tokens, 1)
        ]
        num_full = ceil((self.model.num_layers - num_windowed) / self._layers_per_group)
        num_groups = ceil(num_windowed / self._layers_per_group)
        return (BlockGroup(size),) * num_full + (BlockGroup(size, *most),) * num_groups

    @property
    def _layers_per_group(self) -> int:
        window = self.model.window
        assert window is not None, "the layers of other models form one group"
        return min(window.num_layers, self.model.num_layers - window.num_layers) or (
            self.model.num_layers
        )

    def step_time(self, strategy: Strategy) -> StepTime:
        """Return the step time of an instance, or of the devices of one of its stages.

        Steps are not scheduled ahead with hidden states, whose memory is decided after the previous
        step, nor in a pipeline, whose host serves all stages.
        """
        host = replace(self.host, ahead=self._is_ahead(strategy))
        return StepTime(self.shape, self.device, self.link, host)

    def _is_ahead(self, strategy: Strategy) -> bool:
        return self.host.ahead and self.stages == 1 and not strategy.keeps_hidden

    def instance_spec(
        self,
        strategy: Strategy,
        slo: Slo,
        *,
        tuning: Tuning = DEFAULT_TUNING,
        drop_late: bool = False,
        max_late_wait_s: float | None = None,
        seed: int = 0,
    ) -> InstanceSpec:
        """Return the spec of the instances. Their schedulers start with a prior of batch times, but
        the time to attend to hidden states is measured (Apt-Serve, section 5)."""
        num_blocks, groups = self.num_kv_tokens // self.block_size, self.block_groups
        if groups:
            num_blocks = num_blocks * self.model.num_layers // self._layers_per_group
        config = InstanceConfig(
            strategy=strategy,
            pool=Pool.LP,
            slo=slo,
            num_blocks=num_blocks,
            block_size=self.block_size,
            block_groups=groups,
            # A pipeline has one batch per stage under way.
            max_num_seqs=self.max_num_seqs * self.stages,
            max_batch_tokens=self.max_batch_tokens * self.stages,
            max_model_len=min(
                self.max_model_len, num_blocks // (len(groups) or 1) * self.block_size
            ),
            hidden_states_per_block=(
                self.block_size * self.shape.kv_size // self.shape.hidden_size or None
            ),
            tuning=tuning.over_stages(self.stages),
            drop_late=drop_late,
            max_late_wait_s=max_late_wait_s,
        )
        step_time = self.step_time(strategy)
        pipeline = None
        if self.stages > 1:
            hidden_bytes = self.model.hidden_size * self.model.dtype_bytes
            pipeline = Pipeline(step_time, self.stages, self.link, hidden_bytes)
        random = Random(seed)
        noise = cycle([random.gauss(1.0, NOISE) for _ in range(NUM_NOISES)])
        return InstanceSpec(
            config,
            pipeline.seconds if pipeline else step_time.seconds,
            lambda: LatencyModel(
                self.shape, self.device.roof, rebuild_s_per_token=step_time.rebuild_s_per_token
            ),
            noise,
            pipeline,
            is_ahead=self._is_ahead(strategy),
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster under a strategy."""

    cluster: ClusterSpec
    strategy: Strategy
    """The strategy as its engines run it."""
    slo: Slo
    slo_rule: SloRule = as_client
    high_priority_ratio: float = 0.0
    """Share of the instances in the HP pool."""
    tuning: Tuning = DEFAULT_TUNING
    drop_late: bool = False
    max_late_wait_s: float | None = None
    bounds: Bounds | None = None
    """Bounds on a cell; None for a single cell."""
    routing: Routing = Routing.OWN
    prefix_caching: bool = True
    """Whether prompts with a common prefix share blocks; never with hidden states."""

    def serve(
        self,
        arrivals: Sequence[Arrival],
        *,
        num_before: int = 0,
        stop: StopRule = WHEN_DECIDED,
        seed: int = 0,
        trace: SimulationTrace | None = None,
    ) -> RunResult:
        """Serve the arrivals as in ``Simulation.serve``, with noise by ``seed``. Raises ValueError
        if the model does not fit."""
        return self.simulation(arrivals, seed, trace).serve(
            arrivals, num_before=num_before, slo_rule=self.slo_rule, stop=stop
        )

    def instance_spec(self, arrivals: Sequence[Arrival], seed: int) -> InstanceSpec:
        """Return the spec of the instances for these arrivals, with noise by ``seed``. Raises
        ValueError if the model does not fit."""
        spec = self.cluster.instance_spec(
            self.strategy,
            self.slo,
            tuning=self.tuning,
            drop_late=self.drop_late,
            max_late_wait_s=self.max_late_wait_s,
            seed=seed,
        )
        shares = self.prefix_caching and any(arrival.block_ids for arrival in arrivals)
        return replace(spec, shares_prefixes=shares and not self.strategy.keeps_hidden)

    def simulation(
        self, arrivals: Sequence[Arrival], seed: int = 0, trace: SimulationTrace | None = None
    ) -> Simulation:
        """Return the simulation with which ``serve`` serves the arrivals."""
        spec, bounds = self.instance_spec(arrivals, seed), self.bounds
        num, ratio = self.cluster.num_instances, self.high_priority_ratio
        if self.routing is not Routing.OWN:
            instances = cell_instances(spec, num, ratio)
            return Simulation(RivalRouter(instances, self.routing), spec.config, trace=trace)
        if bounds is None or num <= bounds.upper:
            return single_cell(spec, num, ratio, trace=trace)
        return Simulation(FleetRouter(spec, num, bounds, ratio), spec.config, trace=trace)
