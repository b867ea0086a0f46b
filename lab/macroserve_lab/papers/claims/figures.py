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

    pool: how the paper sums its cases up.
    paper: the paper's figure.
    level: figure of a system that is as good as the baseline.
    by_case: our figure of each case.
    """

    text: str
    strategy: str
    metric: str
    pool: Pool
    paper: float
    level: float
    by_case: Mapping[str, Quantity]

    @property
    def row(self) -> Claim:
        return Claim(self.text, self.strategy, self.metric, self.ours, self.paper)

    def ours(self, values: Values) -> float:
        return self.pool(self.cases(values).values())

    def cases(self, values: Values) -> dict[str, float]:
        return {case: ours(values) for case, ours in self.by_case.items()}

    def document(self, values: Values, setup: str) -> dict[str, Any]:
        """Return the claim as JSON.

        ratio: our gain over the paper's.
        same_sign: number of cases that gain if the paper's do.
        """
        cases = self.cases(values)
        signs = [self._ratio(ours) > 0 for ours in cases.values()]
        ours = self.pool(cases.values())
        return {
            "claim": self.text,
            "compared": self.strategy,
            "metric": self.metric,
            "paper": self.paper,
            "ours": round(ours, 4),
            "ratio": round(self._ratio(ours), 4),
            "sign": "same" if self._ratio(ours) > 0 else "opposite",
            "same_sign": sum(signs),
            "cases": {case: round(each, 4) for case, each in cases.items()},
            "setup": setup,
        }

    def _ratio(self, ours: float) -> float:
        return (ours - self.level) / (self.paper - self.level)


def _figure(measured: Sequence[Measurement], claims: Sequence[AbstractClaim]) -> Figure:
    return Figure(measured, [claim.row for claim in claims])


# EcoServe: 30B and 70B models on 32 L20s.

ECOSERVE = Sweep(
    lambda case, system: ecoserve.HELD["P90", case, system],
    case=[case for case in CASES if case.cluster == "L20"],
    system=(*NODG, *FUDG, "ecoserve"),
)
MORE_GOODPUT = {VLLM: 82.49, "sarathi": 86.17, "distserve": 122.76, "mooncake": 126.96}


def _by_case(
    sweep: Sweep[Any], title: str, how: Comparison, *args: Any, **options: Any
) -> dict[str, Quantity]:
    """Return a comparison of each case of a sweep, whose axes but ``system`` make up the case."""
    found: dict[str, Quantity] = {}
    for cell, _ in sweep.cells():
        case = {axis: value for axis, value in cell.items() if axis != "system"}
        if title.format(**case) not in found:
            found[title.format(**case)] = sweep.compare(how, *args, **options, **case)
    return found


ECOSERVE_CLAIMS = [
    AbstractClaim(
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
DEVICES = [econoserve.FEWEST[setting] for setting in econoserve.FEWER]


def _satisfied(model: Any) -> Quantity:
    """Return the gain in the means of the traces, as in section 4.2."""
    ours, theirs = (
        RUNS.pooled(mean, Metric.ATTAINMENT, model=model, system=system)
        for system in ("econoserve", VLLM)
    )
    return lambda values: GAIN.of(ours(values), max(theirs(values), econoserve.LEAST_SHARE))


ECONOSERVE_CLAIMS = [
    AbstractClaim(
        "throughput at equal latency, up to",
        f"econoserve over {VLLM}",
        TIMES.metric,
        max,
        4.0,
        1.0,
        _by_case(HELD, CASE, TIMES, "econoserve", VLLM, least=LOWEST_TRIED),
    ),
    AbstractClaim(
        "completion time, up to",
        f"econoserve over {VLLM}",
        "% less",
        max,
        91.0,
        0.0,
        _by_case(RUNS, CASE, LESS, "econoserve", VLLM, of=Metric.COMPLETION),
    ),
    AbstractClaim(
        "requests in time (SSR), up to",
        f"econoserve over {VLLM}",
        "% more",
        max,
        91.0,
        0.0,
        {f"{model.name}, all traces": _satisfied(model) for model in MODELS},
    ),
    AbstractClaim(
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

# Ascendra: the most of all cases and rates.

CURVES = Sweep(
    lambda case, system: ascendra.CURVES[case, system],
    case=ascendra.CURVE_RATES,
    system=(*ascendra.BASELINES, "ascendra"),
)
ASCENDRA_CLAIMS = [
    AbstractClaim(
        "throughput within the targets, up to",
        "ascendra over baselines",
        TIMES.metric,
        max,
        ascendra.MORE_IN_TIME,
        1.0,
        {case.name: ascendra.most_in_time(case) for case in ascendra.CURVE_RATES},
    )
]

CLAIMS = {
    "ecoserve": ECOSERVE_CLAIMS,
    "aptserve": APTSERVE_CLAIMS,
    "econoserve": ECONOSERVE_CLAIMS,
    "ascendra": ASCENDRA_CLAIMS,
}
FIGURES = annotated(
    __name__,
    {
        "ecoserve": _figure([*ECOSERVE.values()], ECOSERVE_CLAIMS),
        "aptserve": _figure([*APTSERVE.values()], APTSERVE_CLAIMS),
        "econoserve": _figure([*HELD.values(), *RUNS.values(), *DEVICES], ECONOSERVE_CLAIMS),
        "ascendra": _figure([*CURVES.values()], ASCENDRA_CLAIMS),
    },
)


def documents(values: Values) -> list[dict[str, Any]]:
    """Return all claims as JSON."""
    return [
        {"paper_name": name, **claim.document(values, FIGURES[name].note)}
        for name, claims in CLAIMS.items()
        for claim in claims
    ]
