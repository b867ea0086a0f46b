"""Figure 12: devices with which the goodput of DistServe is held."""

from macroserve.papers.econoserve.cases import (
    DISTSERVE,
    MODELS,
    TRACES,
    WITH_ALL,
    Model,
    experiment,
)
from macroserve.papers.econoserve.completed import Completed
from macroserve.papers.figure import Figure, Row
from macroserve.papers.measurements import FewestInstances, Goodput, Measurement, Values

TRACE = TRACES[1]
LEVEL = 0.9
NUM_INSTANCES = 16
"""Instances of DistServe. The paper has as many of OPT-13B, on two machines, fewer of others."""

FEWER = {"OPT-13B": 73.0, "OPT-175B": 58.0, "Llama-33B": 67.0}
"""Percent of DistServe's devices that EconoServe saves."""


def measurements() -> list[Measurement]:
    found = []
    for model in MODELS:
        slo_rule = Completed.of(model, TRACE)
        distserve = Goodput(
            _key(model, "distserve"),
            experiment(model, TRACE, DISTSERVE, NUM_INSTANCES, slo_rule),
            LEVEL,
            TRACE.duration_s,
            TRACE.lowest,
        )
        fewer = tuple(
            experiment(model, TRACE, WITH_ALL, num, slo_rule) for num in range(1, NUM_INSTANCES + 1)
        )
        found.append(FewestInstances(_key(model, "econoserve"), distserve, fewer))
    return found


def rows(values: Values) -> list[Row]:
    def fewer(model: Model) -> float:
        return 100 * (1 - values[_key(model, "econoserve")] / NUM_INSTANCES)

    return [
        Row("devices", model.name, "econoserve for distserve", "% fewer", fewer(model), paper)
        for model in MODELS
        for paper in [FEWER[model.name]]
    ] + [
        Row("devices", model.name, "distserve", "requests/s", values[_key(model, "distserve")])
        for model in MODELS
    ]


def _key(model: Model, name: str) -> str:
    return f"devices {model.name} {name}"


FIGURE = Figure(
    measurements,
    rows,
    "The network decides. All of this was measured before EconoServe's orders had targets and "
    "ranges: with 10 Gb/s between the machines, and not 100, DistServe served 7.3 requests/s of "
    "OPT-13B and not 23.5, and EconoServe needed 75 % fewer devices for them. With the goodput of "
    "100 Gb/s, prefill-first needed 44 % fewer, and EconoServe 31 %: with more slack (5 times the "
    "time alone, not 2) or an oracle of the lengths it needed as many.",
)
