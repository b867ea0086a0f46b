"""A model on a number of instances of some devices: what an experiment serves with."""

from dataclasses import dataclass, replace
from itertools import cycle
from random import Random

from macroserve.core.instance.config import InstanceConfig
from macroserve.core.latency import LatencyModel, ModelShape
from macroserve.core.request import Slo
from macroserve.core.strategy import Strategy
from macroserve.core.views import Pool
from macroserve.sim.fabric import Fabric
from macroserve.sim.hardware.devices import Device
from macroserve.sim.hardware.links import Link
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.hardware.step_time import Host, StepTime
from macroserve.sim.instance import Engine

MEMORY_SHARE = 0.9
"""Of a device's memory, for weights, cache and activations (vLLM's default)."""

ACTIVATION_BYTES = 1e9
"""Of each device, for the largest batch."""

BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
MAX_BATCH_TOKENS = 4096
MAX_MODEL_LEN = 8192
CHUNK_TOKENS = 512
"""Sarathi's, in its paper and in those that compare with it."""

NOISE = 0.03
"""Standard deviation of a step's time, as a share of it."""

VLLM_HOST = Host()
"""A present vLLM's."""

NUM_NOISES = 4093
"""Drawn once and used in turn."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """ranks: devices of one instance, which share every layer over ``link``.

    kv_bytes: of one instance's cache, where an experiment sets it; else what memory leaves.
    fabric: what instances send KV caches over, for strategies that do.
    """

    model: str
    device: Device
    link: Link
    ranks: int
    num_instances: int
    kv_bytes: float | None = None
    block_size: int = BLOCK_SIZE
    max_model_len: int = MAX_MODEL_LEN
    host: Host = VLLM_HOST
    fabric: Fabric | None = None

    @property
    def shape(self) -> ModelShape:
        return replace(MODELS[self.model], tensor_parallel=self.ranks)

    @property
    def num_kv_tokens(self) -> int:
        """What one instance's cache holds. Raises ValueError where the weights leave nothing."""
        free = self.kv_bytes
        if free is None:
            memory = self.ranks * (MEMORY_SHARE * self.device.memory_bytes - ACTIVATION_BYTES)
            free = memory - self.shape.weight_bytes
        num_tokens = int(free / self.shape.kv_bytes_per_token)
        if num_tokens < self.block_size:
            raise ValueError(
                f"{self.model} leaves no memory for a cache on {self.ranks} x {self.device.name}"
            )
        return num_tokens

    def engine(
        self,
        strategy: Strategy,
        slo: Slo,
        *,
        chunk_tokens: int = CHUNK_TOKENS,
        late_value: float = 0.0,
        drop_late: bool = False,
        seed: int = 0,
    ) -> Engine:
        """Its instances, whose schedulers begin with a guess of how long batches take."""
        num_tokens = self.num_kv_tokens
        config = InstanceConfig(
            strategy=strategy,
            pool=Pool.LP,
            slo=slo,
            num_blocks=num_tokens // self.block_size,
            block_size=self.block_size,
            max_num_seqs=MAX_NUM_SEQS,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_model_len=min(self.max_model_len, num_tokens),
            chunk_tokens=chunk_tokens,
            hybrid_cache=self.shape.hidden_size < self.shape.kv_size,
            late_value=late_value,
            drop_late=drop_late,
        )
        truth = StepTime(self.shape, self.device, self.link, self.host).seconds
        random = Random(seed)
        noise = cycle([random.gauss(1.0, NOISE) for _ in range(NUM_NOISES)])
        return Engine(config, truth, lambda: LatencyModel(self.shape, self.device.roof), noise)
