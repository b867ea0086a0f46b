"""An experiment that takes a second."""

from macroserve.core.request import Slo
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.hardware.devices import A100_80GB
from macroserve.sim.hardware.links import NVLINK_3
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.experiment import Experiment

EXPERIMENT = Experiment(
    Scenario(
        ClusterSpec(MODELS["Mistral-7B"], A100_80GB, NVLINK_3, 1, 1),
        STRATEGIES["vllm"],
        Slo(1.0, 0.1),
    ),
    WORKLOADS["ShareGPT"],
)
