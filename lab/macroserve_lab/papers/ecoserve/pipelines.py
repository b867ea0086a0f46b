"""Section 4.4: the same devices as pipelines."""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.ecoserve.cases import (
    DURATION_S,
    LEVELS,
    LOWEST,
    SCALED,
    SLOS,
    experiments,
)
from macroserve_lab.papers.figure import Figure, Panel, Row
from macroserve_lab.papers.measurements import Goodput, Measurement, Values

TPOTS_S = (0.1, 0.2, 0.3, 0.4, 0.5)
"""TPOT targets in seconds (section 4.4); pipelines make no single step faster."""

SHARED = "TP4"
PIPELINED = "TP1, PP4"
LAYOUTS = {SHARED: {"ranks": 4, "stages": 1}, PIPELINED: {"ranks": 1, "stages": 4}}
COMPARED = ("ecoserve", "prefill-first", "sarathi", "unified")


def measurements() -> list[Measurement]:
    """Return the goodputs of the same devices as pipelines, and with every layer shared."""
    return [
        Goodput(
            measurement_key(variant, layout, tpot_s),
            _laid_out(variant, layout, tpot_s),
            LEVELS["P90"],
            DURATION_S[SCALED.workload],
            LOWEST[SCALED.workload],
        )
        for tpot_s in TPOTS_S
        for layout in LAYOUTS
        for variant in COMPARED
    ]


def _laid_out(variant: str, layout: str, tpot_s: float) -> Experiment:
    (experiment,) = experiments(SCALED, variant)
    scenario = experiment.scenario
    cluster = replace(scenario.cluster, **LAYOUTS[layout])
    slo = Slo(SLOS[SCALED.workload].ttft_s, tpot_s)
    return replace(experiment, scenario=replace(scenario, cluster=cluster, slo=slo))


def rows(values: Values) -> list[Row]:
    """Return the goodputs, of which the paper plots curves and prints no figure."""

    def rate(variant: str, layout: str, tpot_s: float) -> float:
        return values[measurement_key(variant, layout, tpot_s)]

    def over_shared(variant: str, tpot_s: float) -> float:
        least = LOWEST[SCALED.workload]
        return rate(variant, PIPELINED, tpot_s) / max(rate(variant, SHARED, tpot_s), least)

    gains = [
        Row(
            "pipelines",
            f"TPOT {tpot_s * 1e3:.0f} ms",
            f"{variant}, {PIPELINED} over {SHARED}",
            "times",
            over_shared(variant, tpot_s),
            is_summary=True,
        )
        for tpot_s in TPOTS_S
        for variant in COMPARED
    ]
    return gains + [
        Row(
            "pipelines",
            f"TPOT {tpot_s * 1e3:.0f} ms",
            f"{variant}, {layout}",
            "requests/s",
            rate(variant, layout, tpot_s),
        )
        for tpot_s in TPOTS_S
        for layout in LAYOUTS
        for variant in COMPARED
    ]


def panels(values: Values) -> list[Panel]:
    lines = {
        f"{variant}, {layout}": [
            (1e3 * tpot_s, values[measurement_key(variant, layout, tpot_s)]) for tpot_s in TPOTS_S
        ]
        for variant in COMPARED
        for layout in LAYOUTS
    }
    return [Panel("pipelines", "TPOT target in ms", "requests/s at P90", lines)]


def measurement_key(variant: str, layout: str, tpot_s: float) -> str:
    """Return the key of a goodput under a TPOT target."""
    return f"pipeline {variant} {layout} {tpot_s:g} s"


FIGURE = Figure(
    measurements,
    rows,
    "There EcoServe gains by pipelines, and here it loses: it fills an instance up to what the "
    "target for the first token allows, and of a pipeline a tenth of them come half a second to a "
    "second and a half later than predicted, too late. Sarathi and unified gain from 400 ms on. "
    "The bandwidth between the devices decides: with an eighth of it, 2.5 GB/s, 94 % of 14 "
    "requests/s are in time on pipelines and 66 % with layers shared (TPOT 500 ms), with a quarter "
    "as many either way.",
    panels,
)
