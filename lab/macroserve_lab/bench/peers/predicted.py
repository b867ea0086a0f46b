"""The simulator's predictions for the points of rehearsed engines."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from macroserve.core.engine_sizes import sizes_on
from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache
from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.host import VLLM_AHEAD
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.results import AT_END, RunResult
from macroserve.sim.rival_routing import Routing
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve_lab.bench.peers.journal import PointKey
from macroserve_lab.bench.peers.loads import Load, RequestLoad
from macroserve_lab.bench.peers.rehearsed import MAX_MODEL_LEN, Rehearsed
from macroserve_lab.bench.peers.sweep import Sweep

SIMULATED = {
    "macroserve": ("unified", Routing.OWN),
    "macroserve_vllm": ("vllm", Routing.OWN),
    "vllm_router_round_robin": ("vllm", Routing.ROUND_ROBIN),
}
"""Strategy and routing, by deployment; the rules of the other routers are not simulated."""

LINK = "pcie4"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A simulation of each point of a sweep, with the same requests."""

    sweep: Sweep
    loads: Mapping[str, Load]
    rehearsed: Rehearsed
    num_instances: int
    slo: Slo
    duration_s: float

    def figures(self) -> dict[str, float]:
        """Return medians of the rounds, by the keys of the measured figures with ``predicted``."""
        rounds: defaultdict[str, list[float]] = defaultdict(list)
        for turn in self.sweep.turns():
            for key in turn.points:
                load = self.loads[key.load]
                if key.deployment in SIMULATED and isinstance(load, RequestLoad):
                    start = f"peers.{key.deployment}.{key.load}.{key.rate:g}.predicted_"
                    for name, value in _figures(self._run(key, load)).items():
                        rounds[start + name].append(value)
        return {name: median(values) for name, values in rounds.items()}

    def _run(self, key: PointKey, load: RequestLoad) -> RunResult:
        strategy, routing = SIMULATED[key.deployment]
        sizes = sizes_on(self.rehearsed.device, DEVICES[self.rehearsed.device].memory_bytes)
        cluster = ClusterSpec(
            MODELS[self.rehearsed.model],
            DEVICES[self.rehearsed.device],
            LINKS[LINK],
            ranks=self.rehearsed.tensor_parallel,
            num_instances=self.num_instances,
            block_size=sizes.block_size,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=sizes.max_num_seqs,
            max_batch_tokens=sizes.max_batch_tokens,
            host=VLLM_AHEAD,
        )
        served = replace(STRATEGIES[strategy], hybrid_cache=HybridCache.NEVER)
        arrivals = load.plan(key.rate, self.duration_s, self.sweep.seed_of(key))
        return Scenario(cluster, served, self.slo, routing=routing).serve(
            arrivals, stop=AT_END, seed=key.round
        )


def _figures(result: RunResult) -> dict[str, float]:
    """Return the figures of a run, with latencies of the requests that are not refused."""
    served = [each for each in result.results if not each.refused]
    latencies = {
        "ttft": [each.wait_s for each in served],
        "tpot": [each.tpot_s for each in served if each.num_output_tokens > 1],
    }
    return {
        "attainment": result.attainment,
        "refused_share": 1 - len(served) / len(result.results),
        **{
            f"{latency}_p{share}_ms": 1e3 * float(np.percentile(values, share))
            for latency, values in latencies.items()
            for share in (50, 90, 99)
        },
    }
