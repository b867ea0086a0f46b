"""The claims of the papers' abstracts: a figure for each paper, a row for each claim.

Only what a claim needs is measured. Cases that the claim sums up are kept, since the largest or the
mean of them says nothing of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from macroserve_lab.papers.aptserve import figures as aptserve
from macroserve_lab.papers.ascendra import figures as ascendra
from macroserve_lab.papers.econoserve import figures as econoserve
from macroserve_lab.papers.econoserve.cases import MODELS, RATES, TRACES, VARIANTS, experiment
from macroserve_lab.papers.econoserve.completed import Completed
from macroserve_lab.papers.ecoserve import figures as ecoserve
from macroserve_lab.papers.ecoserve.cases import CASES, FUDG, NODG
from macroserve_lab.papers.figure import Claim, Figure, Quantity, annotated
from macroserve_lab.papers.measurements import Measurement, Metric, Served, Values
from macroserve_lab.papers.sweep import GAIN, LOWEST_TRIED, TIMES, Comparison, Pool, Sweep

VLLM = "prefill-first"
"""vLLM as the papers measured it."""


@dataclass(frozen=True, slots=True)
class AbstractClaim:
    """A claim of an abstract.

    pool: how the paper sums up its cases.
    theirs: the paper's figure.
    even: the figure of a system that is as good as the baseline.
    by_case: our figure of each case.
    """

    paper: str
    text: str
    compared: str
    metric: str
    pool: Pool
    theirs: float
    even: float
    by_case: Mapping[str, Quantity]

    @property
    def row(self) -> Claim:
        return Claim(self.text, self.compared, self.metric, self.ours, self.theirs)

    def ours(self, values: Values) -> float:
        return self.pool([ours(values) for ours in self.by_case.values()])

    def document(self, values: Values) -> dict[str, Any]:
        """Return the claim as JSON; ``ratio`` is our gain over the paper's."""
        cases = {case: ours(values) for case, ours in self.by_case.items()}
        ratio = self._ratio(self.ours(values))
        return {
            "paper": self.paper,
            "claim": self.text,
            "compared": self.compared,
            "metric": self.metric,
            "theirs": self.theirs,
            "ours": round(self.ours(values), 4),
            "ratio": round(ratio, 4),
            "sign": "same" if ratio > 0 else "opposite",
            "cases_of_same_sign": sum(self._ratio(each) > 0 for each in cases.values()),
            "cases": {case: round(each, 4) for case, each in cases.items()},
        }

    def _ratio(self, ours: float) -> float:
        return (ours - self.even) / (self.theirs - self.even)


def _by_case(
    sweep: Sweep[Any], title: str, how: Comparison, ours: str, theirs: str, **options: Any
) -> dict[str, Quantity]:
    """Return the comparison in each case, which all axes of the sweep but ``system`` make up."""
    return {
        title.format(**cell): sweep.compare(
            how, ours, theirs, **options, **{axis: cell[axis] for axis in cell if axis != "system"}
        )
        for cell, _ in sweep.cells(system=ours)
    }


# EcoServe: 30B and 70B models on 32 L20s.

ECOSERVE = Sweep(
    lambda case, system: ecoserve.HELD["P90", case, system],
    case=[case for case in CASES if case.cluster == "L20"],
    system=(*NODG, *FUDG, "ecoserve"),
)
MORE_GOODPUT = {VLLM: 82.49, "sarathi": 86.17, "distserve": 122.76, "mooncake": 126.96}


ECOSERVE_CLAIMS = [
    AbstractClaim(
        "EcoServe",
        "goodput, mean of all cases",
        f"ecoserve over {baseline}",
        GAIN.metric,
        mean,
        paper,
        0.0,
        _by_case(
            ECOSERVE,
            "{case.model}, {case.workload}",
            GAIN,
            "ecoserve",
            baseline,
            **ecoserve.FLOORED,
        ),
    )
    for baseline, paper in MORE_GOODPUT.items()
]

# Apt-Serve: the most of three models and three data sets, where 60 % are to be in time.

APTSERVE = Sweep(
    lambda model, name, system: aptserve.HELD["60 %", model, name, system],
    model=aptserve.RANKS,
    name=aptserve.SETS,
    system=(VLLM, "aptserve"),
)
APTSERVE_CLAIMS = [
    AbstractClaim(
        "Apt-Serve",
        "effective throughput, up to",
        f"aptserve over {VLLM}",
        TIMES.metric,
        max,
        8.8,
        1.0,
        _by_case(APTSERVE, "{model}, {name}", TIMES, "aptserve", VLLM, **aptserve.FLOORED),
    )
]

# EconoServe: the most of three models and three traces.

HELD = Sweep(
    lambda model, trace, system: econoserve.HELD[model, trace, system],
    model=MODELS,
    trace=TRACES,
    system=(VLLM, "econoserve"),
)


def _run(model: Any, trace: Any, system: str) -> Served:
    if system == "econoserve":
        return econoserve.ABLATION_RUNS[model, trace, "with all"]
    return Served(
        f"claims {model.name} {trace.workload} {system}",
        experiment(model, trace, VARIANTS[system], slo_rule=Completed.of(model, trace)),
        RATES[model.name][trace.workload],
        trace.duration_s,
        tuple(econoserve.PRINTED),
    )


RUNS = Sweep(_run, model=MODELS, trace=TRACES, system=(VLLM, "econoserve"))
LESS = Comparison("% less", lambda ours, theirs: 100 * (1 - ours / theirs))
CASE = "{model.name}, {trace.workload}"


def _satisfied(model: Any) -> Quantity:
    """Return the gain in the means of the traces, as in section 4.2."""
    ours, theirs = (
        RUNS.pooled(mean, Metric.ATTAINMENT, model=model, system=system)
        for system in ("econoserve", VLLM)
    )
    return lambda values: GAIN.of(ours(values), max(theirs(values), econoserve.LEAST_SHARE))


ECONOSERVE_CLAIMS = [
    AbstractClaim(
        "EconoServe",
        "throughput at equal latency, up to",
        f"econoserve over {VLLM}",
        TIMES.metric,
        max,
        4.0,
        1.0,
        _by_case(HELD, CASE, TIMES, "econoserve", VLLM, least=LOWEST_TRIED),
    ),
    AbstractClaim(
        "EconoServe",
        "completion time, up to",
        f"econoserve over {VLLM}",
        "% less",
        max,
        91.0,
        0.0,
        _by_case(RUNS, CASE, LESS, "econoserve", VLLM, of=Metric.COMPLETION),
    ),
    AbstractClaim(
        "EconoServe",
        "requests in time (SSR), up to",
        f"econoserve over {VLLM}",
        "% more",
        max,
        91.0,
        0.0,
        {f"{model.name}, all traces": _satisfied(model) for model in MODELS},
    ),
    AbstractClaim(
        "EconoServe",
        "devices at equal goodput, up to",
        "econoserve over distserve",
        "% fewer",
        max,
        78.0,
        0.0,
        {
            f"{model.name}, {name}": econoserve.fewer(econoserve.FEWEST[name, model])
            for name, model in econoserve.FEWER
        },
    ),
]

# Ascendra: the most of three rates, where all drop late requests. The abstract does not say what it
# measures; of all figures, section 8.6's 1.74 is the closest.

DROPPING = Sweep(
    lambda rate, system: ascendra.DROPPING[rate, system],
    rate=ascendra.OVERLOAD_RATES,
    system=(*ascendra.BASELINES, "ascendra"),
)
ASCENDRA_CLAIMS = [
    AbstractClaim(
        "Ascendra",
        "throughput within the targets, up to",
        "ascendra over baselines",
        TIMES.metric,
        max,
        1.7,
        1.0,
        {f"{rate:g} requests/s": ascendra.over_mean(rate) for rate in ascendra.OVERLOAD_RATES},
    )
]

CLAIMS = {
    "ecoserve": ECOSERVE_CLAIMS,
    "aptserve": APTSERVE_CLAIMS,
    "econoserve": ECONOSERVE_CLAIMS,
    "ascendra": ASCENDRA_CLAIMS,
}
MEASUREMENTS: Mapping[str, Sequence[Measurement]] = {
    "ecoserve": [*ECOSERVE.values()],
    "aptserve": [*APTSERVE.values()],
    "econoserve": [*HELD.values(), *RUNS.values(), *econoserve.FEWEST.values()],
    "ascendra": [*DROPPING.values()],
}
FIGURES = annotated(
    __name__,
    {
        name: Figure(MEASUREMENTS[name], [claim.row for claim in claims])
        for name, claims in CLAIMS.items()
    },
)
