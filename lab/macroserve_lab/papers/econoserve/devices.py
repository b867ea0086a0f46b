"""Figure 12: devices with which the goodput of DistServe is held."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from macroserve.sim.hardware.devices import H100
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.econoserve.cases import (
    DISTSERVE,
    MODELS,
    TRACES,
    WITH_ALL,
    Model,
    experiment,
)
from macroserve_lab.papers.econoserve.completed import Completed
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import FewestInstances, Goodput, Measurement, Values

TRACE = TRACES[1]
LEVEL = 0.9
NUM_INSTANCES = 16
"""Instances of DistServe. The paper has as many of OPT-13B, on two machines, fewer of others."""

NUM_PREFILL, NUM_DECODE = 4, 8
"""H100s that prefill and A100s that decode, each on a machine of their own (section 4.2)."""

SMALL = Model("Llama3.1-8B", 1, None)
"""Model of the large-scale simulation. Its shape is that of the paper's Llama-3-8B."""

SMALL_S = 30.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting is a cluster of DistServe's, whose goodput EconoServe is to hold on A100s.

    distserve: returns DistServe's experiment under an SLO rule.
    fewer: percent of DistServe's devices that EconoServe saves, by model.
    """

    name: str
    distserve: Callable[[Model, Completed], Experiment]
    fewer: dict[str, float]
    models: tuple[Model, ...] = MODELS
    duration_s: float = TRACE.duration_s

    def key(self, model: Model, system: str) -> str:
        return f"devices {self.name} {model.name} {system}"

    def fewest(self, model: Model) -> FewestInstances:
        slo_rule = Completed.of(model, TRACE)
        theirs = self.distserve(model, slo_rule)
        goodput = Goodput(
            self.key(model, "distserve"), theirs, LEVEL, self.duration_s, TRACE.lowest
        )
        num_instances = theirs.scenario.cluster.num_instances
        ours = tuple(
            experiment(model, TRACE, WITH_ALL, num, slo_rule) for num in range(1, num_instances + 1)
        )
        return FewestInstances(self.key(model, "econoserve"), goodput, ours)


def _equal(model: Model, slo_rule: Completed) -> Experiment:
    return experiment(model, TRACE, DISTSERVE, NUM_INSTANCES, slo_rule)


def _with_h100s(model: Model, slo_rule: Completed) -> Experiment:
    """Return DistServe with prefills on the H100s of one node.

    Nodes are of equal size here, so that the decodes lie on two; all caches leave by one link
    either way. The links between the devices of an instance are those of the A100s.
    """
    num_prefill, num_decode = NUM_PREFILL // model.ranks, NUM_DECODE // model.ranks
    found = experiment(model, TRACE, DISTSERVE, num_prefill + num_decode, slo_rule)
    spec = found.scenario.cluster
    assert spec.topology is not None, "DistServe sends caches"
    spec = replace(
        spec,
        prefill_device=H100,
        topology=replace(spec.topology, instances_per_node=num_prefill),
    )
    ratio = num_prefill / (num_prefill + num_decode)
    return replace(found, scenario=replace(found.scenario, cluster=spec, high_priority_ratio=ratio))


OPT_13B, LLAMA_33B, _ = MODELS
SETTINGS = (
    Setting("homogeneous", _equal, {"OPT-13B": 73.0, "OPT-175B": 58.0, "Llama-33B": 67.0}),
    # The weights of OPT-175B, 350 GB, do not fit four devices of 80 GB.
    Setting(
        "heterogeneous", _with_h100s, {"OPT-13B": 61.0, "Llama-33B": 57.0}, (OPT_13B, LLAMA_33B)
    ),
    Setting("large", _equal, {"Llama3.1-8B": 77.0}, (SMALL,), SMALL_S),
)

FEWEST = {
    (setting.name, model.name): setting.fewest(model)
    for setting in SETTINGS
    for model in setting.models
}


def measurements() -> list[Measurement]:
    return list(FEWEST.values())


def rows(values: Values) -> list[Row]:
    def fewer(found: FewestInstances) -> float:
        return 100 * (1 - values[found.key] / len(found.experiments))

    return [
        Row(
            "devices",
            f"{model}, {setting.name}",
            "econoserve for distserve",
            "% fewer",
            fewer(FEWEST[setting.name, model]),
            paper,
        )
        for setting in SETTINGS
        for model, paper in setting.fewer.items()
    ] + [
        Row(
            "devices",
            f"{model}, {setting}",
            "distserve",
            "requests/s",
            values[found.goodput.key],
        )
        for (setting, model), found in FEWEST.items()
    ]


NETWORK_DECIDES = (
    "The network decides. With 10 Gb/s between the machines DistServe serves 8.45 requests/s of "
    "OPT-13B, and four devices of EconoServe hold them, 75 % fewer; with 100 Gb/s it serves 26.2, "
    "and EconoServe needs 31 % fewer, prefill-first 44 % and an oracle of the lengths 31 % (30 s, "
    "one seed). With prefills on four H100s DistServe has 12 devices; at 18 requests/s of OPT-13B "
    "it has all in time, nine A100s of EconoServe 99.7 %, and seven 89 % (20 s, one seed). The "
    "paper's large cluster has 4,000 devices, 250 times as many as here."
)

FIGURE = Figure(measurements, rows, NETWORK_DECIDES)
