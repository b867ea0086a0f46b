"""Apt-Serve's setup (section 6.2): models, data sets, targets, systems."""

from dataclasses import dataclass, replace

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Strategy
from macroserve.core.tuning import DEFAULT_TUNING, Tuning
from macroserve.sim.hardware.devices import A100_40GB
from macroserve.sim.hardware.host import VLLM_HOST, Host
from macroserve.sim.hardware.links import NVLINK_3
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import OPT_LENGTH, WORKLOADS
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.aptserve.fcfs import fcfs_batch
from macroserve_lab.slo_rules import as_aptserve

NUM_REQUESTS = 1000
RANKS = {"OPT-13B": 1, "OPT-30B": 2, "OPT-66B": 4}
SETS = {"ShareGPT": "ShareGPT", "HumanEval": "HumanEval", "LongBench": "LongBench, 2k"}
TARGETS_S = {
    "ShareGPT": {"OPT-13B": (1.0, 1.0), "OPT-30B": (1.5, 1.0), "OPT-66B": (2.0, 1.0)},
    "HumanEval": {"OPT-13B": (0.5, 0.5), "OPT-30B": (1.0, 0.5), "OPT-66B": (1.5, 0.5)},
    "LongBench": {"OPT-13B": (4.0, 1.0), "OPT-30B": (4.5, 1.0), "OPT-66B": (5.0, 1.0)},
}
"""Targets of table 3, seconds: TTFT, and the 99th percentile of the time between tokens."""

FASTGEN_TOKENS = 768
"""Tokens to which DeepSpeed-FastGen fills each forward pass with chunks: Sarathi with another size,
that of its ragged batches."""


PAPERS_HOST = Host(step_s=0.015, sequence_s=1.35e-3)
"""Host time with which a decode iteration of 50 requests of OPT-13B takes the 120 ms that section
6.6 prints, of which the device needs a third."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A strategy with settings of an engine.

    rebuilds: whether keys and values are recomputed from hidden states, as by the paper's kernel.
    """

    strategy: Strategy
    tuning: Tuning = DEFAULT_TUNING
    host: Host = VLLM_HOST
    rebuilds: bool = False


APT = STRATEGIES["aptserve"]
FCFS = replace(APT, batch=fcfs_batch, chooses_decodes=False)
KV_ONLY = replace(APT, hybrid_cache=HybridCache.NEVER)
DECAYED = "aptserve, late value 0.4"
"""Variant with late requests of this share of their value (section 6.6)."""

VARIANTS = {
    "prefill-first": Variant(STRATEGIES["prefill-first"]),
    "sarathi": Variant(STRATEGIES["sarathi"]),
    "fastgen": Variant(STRATEGIES["sarathi"], Tuning(chunk_tokens=FASTGEN_TOKENS)),
    "aptserve": Variant(APT),
    "aptserve-s": Variant(STRATEGIES["aptserve-s"]),
    "aptserve, KV only": Variant(KV_ONLY),
    "aptserve, FCFS": Variant(FCFS),
    DECAYED: Variant(APT, Tuning(late_value=0.4)),
    "aptserve, the paper's kernel": Variant(APT, rebuilds=True),
    "aptserve, KV only, the paper's engine": Variant(KV_ONLY, host=PAPERS_HOST),
    "aptserve, the paper's engine": Variant(APT, host=PAPERS_HOST, rebuilds=True),
    "unified": Variant(STRATEGIES["unified"]),
}
BASELINES = ("prefill-first", "sarathi", "fastgen")
COMPARED = (*BASELINES, "aptserve", "aptserve-s", "unified")

VARIATIONS = (1, 5, 10)
"""Coefficients of variation of the gaps between arrivals, of tables 4 and 5."""

LOWEST = {"ShareGPT": 0.5, "HumanEval": 1.0, "LongBench": 0.2}


def experiment(model: str, name: str, variant: str, variation: float = 1.0) -> Experiment:
    chosen = VARIANTS[variant]
    ttft_s, tbt_s = TARGETS_S[name][model]
    shape = MODELS[model]
    cluster = ClusterSpec(
        # Keys must be recomputed only with rotary embedding.
        replace(shape, rotary=True) if chosen.rebuilds else shape,
        A100_40GB,
        NVLINK_3,
        RANKS[model],
        1,
        max_model_len=OPT_LENGTH,
        host=chosen.host,
    )
    scenario = Scenario(
        cluster, chosen.strategy, Slo(ttft_s, tbt_s, tbt_s), as_aptserve, tuning=chosen.tuning
    )
    return Experiment(scenario, WORKLOADS[SETS[name]], variation)
