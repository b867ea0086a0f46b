"""Figures of ``unified``, next to all other strategies on all papers' benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from macroserve.core.routing.policies import ascendra_route, ecoserve_route
from macroserve.core.scheduler.batching.baselines import chunked_batch
from macroserve.core.scheduler.batching.econoserve import econoserve_batch
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import HybridCache, Ordering
from macroserve.core.tuning import Tuning
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.econoserve.cases import SERVED
from macroserve_lab.papers.figure import Claim, Figure, Quantity, annotated
from macroserve_lab.papers.measurements import (
    LOOKED_AT,
    Ceiling,
    CloserLook,
    Goodput,
    Search,
    Values,
    point,
)
from macroserve_lab.papers.sweep import GAIN, reading
from macroserve_lab.papers.unified.benchmarks import (
    BASELINE,
    BENCHMARKS,
    CHUNKS,
    DURATION_S,
    UNIFIED,
    Benchmark,
    gains,
    measurements,
    rates,
    with_scenario,
)
from macroserve_lab.slo_rules import as_aptserve

# Goodput on each paper's own benchmark, and which requests pay for the gain.

LOOKS = {
    f"{benchmark.paper}, {benchmark.name}": CloserLook(goodput)
    for benchmark in BENCHMARKS
    if isinstance(goodput := benchmark.search(UNIFIED, benchmark.experiment), Goodput)
}
"""Closer looks at the benchmarks whose measure is goodput: attainment by size, which shows whether
the gain comes from refusing expensive requests, and the longest wait."""

_BY_KEY = {look.key: look for look in LOOKS.values()}
GOODPUT = Figure(
    [_BY_KEY.get(each.key, each) for each in measurements(BENCHMARKS)],
    [
        gains(BENCHMARKS),
        *[
            Claim(case, UNIFIED, of, reading(point(look.key, of)))
            for case, look in LOOKS.items()
            for of in LOOKED_AT
        ],
        rates(BENCHMARKS),
    ],
)

# The goodput of ``unified``, and the rate at which the devices can end requests at all. A strategy
# cannot make the devices faster. If late requests are not served at all, a strategy that keeps nine
# in ten requests within their targets serves at most about a ninth more than the requests that end
# per second without any targets, and some more if the late requests are the largest.

BY_GOODPUT = [benchmark for benchmark in BENCHMARKS if benchmark.limit_s is None]


def _ceilings(benchmark: Benchmark) -> list[Ceiling]:
    """Return the variants that end many requests where no request is urgent; the best one
    counts."""
    patient = with_scenario(benchmark.experiment, slo=SERVED, high_priority_ratio=0.0)
    tried = {
        BASELINE: with_scenario(patient, strategy=STRATEGIES[BASELINE]),
        **{
            f"sarathi {size}": with_scenario(
                patient, strategy=STRATEGIES["sarathi"], tuning=Tuning(chunk_tokens=size)
            )
            for size in CHUNKS[2:]
        },
    }
    return [
        Ceiling(f"{benchmark.key(name)}, ceiling", experiment, DURATION_S / 2, benchmark.lowest)
        for name, experiment in tried.items()
    ]


CEILINGS = {benchmark: _ceilings(benchmark) for benchmark in BY_GOODPUT}


def _ceiling_rows(benchmark: Benchmark) -> list[Claim]:
    case = f"{benchmark.paper}, {benchmark.name}"
    goodput = reading(benchmark.key(UNIFIED))

    def ceiling(values: Values) -> float:
        return max(values[each.key] for each in CEILINGS[benchmark])

    def share(values: Values) -> float:
        return goodput(values) / ceiling(values)

    return [
        Claim(case, UNIFIED, "share of it", share, is_summary=True),
        Claim(case, "any, without targets", "requests/s", ceiling),
        Claim(case, UNIFIED, "requests/s", goodput),
    ]


CEILING = Figure(
    [*LOOKS.values(), *[each for ceilings in CEILINGS.values() for each in ceilings]],
    [_ceiling_rows(benchmark) for benchmark in BY_GOODPUT],
)

# Nearly all requests have to be within the targets, or nearly all tokens and not only their mean.

STRICT_MODELS = ("CodeLlama-34B", "OPT-13B", "Mistral-7B", "Llama3.1-8B", "Qwen-14B")
"""Models of the chosen cases: one case of each paper but Ascendra, whose cases are all small."""

STRICT = [each for each in BY_GOODPUT if any(model in each.name for model in STRICT_MODELS)]
NEARLY_ALL = [replace(benchmark, name=f"{benchmark.name}, P99", level=0.99) for benchmark in STRICT]


def _every_token(benchmark: Benchmark) -> Benchmark:
    slo = benchmark.experiment.scenario.slo
    strict = replace(slo, tbt_s=slo.tpot_s)
    return replace(
        benchmark,
        name=f"{benchmark.name}, P99 of the gaps",
        experiment=with_scenario(benchmark.experiment, slo=strict, slo_rule=as_aptserve),
    )


# Apt-Serve's own are such.
EVERY_TOKEN = [_every_token(each) for each in STRICT if each.paper != "aptserve"]


def _strict(chosen: Sequence[Benchmark]) -> Figure:
    return Figure(measurements(chosen), [*gains(chosen), *rates(chosen)])


# A strategy without each of its parts, or with one more.


@dataclass(frozen=True, slots=True)
class Ablation:
    """The rate that each variant of a strategy holds in each case.

    whole: name of the strategy with all parts.
    cases: benchmarks, of which the scenarios count.
    changes: fields of the scenario that a variant has otherwise, by its name.
    base: fields of the scenario that all variants have.
    """

    whole: str
    cases: Sequence[Benchmark]
    changes: Mapping[str, Mapping[str, object]]
    base: Mapping[str, object] = field(default_factory=dict)

    @property
    def figure(self) -> Figure:
        return Figure(self.measurements, self.table)

    @property
    def measurements(self) -> list[Search]:
        return [
            case.search(variant, experiment)
            for case in self.cases
            for variant, experiment in self.variants_of(case).items()
        ]

    def variants_of(self, case: Benchmark) -> dict[str, Experiment]:
        """Return the experiments of a case by variant, that with all parts first."""
        base = with_scenario(case.experiment, **self.base)
        changed = {name: with_scenario(base, **fields) for name, fields in self.changes.items()}
        return {self.whole: base, **changed}

    @property
    def table(self) -> list[Claim]:
        """Return the change of the rate held in each variant, in percent, and its mean."""
        return [
            *[
                Claim(
                    "mean of all cases",
                    name,
                    "rate in %",
                    self._change(self.cases, name),
                    None,
                    True,
                )
                for name in self.changes
            ],
            *[
                Claim(f"{case.paper}, {case.name}", name, "rate in %", self._change([case], name))
                for case in self.cases
                for name in self.changes
            ],
        ]

    def _change(self, cases: Sequence[Benchmark], variant: str) -> Quantity:
        return lambda values: mean(
            GAIN.of(
                max(values[case.key(variant)], case.lowest),
                max(values[case.key(self.whole)], case.lowest),
            )
            for case in cases
        )


_MODELS = ("L20, Llama-30B", "OPT-13B", "Mistral-7B", "Llama3.1-8B", "Qwen-14B")
CASES = [each for each in BENCHMARKS if any(model in each.name for model in _MODELS)]

WHOLE = STRATEGIES[UNIFIED]
WITHOUT = {
    "the hybrid cache": replace(WHOLE, hybrid_cache=HybridCache.NEVER),
    "steps from saved time (Sarathi's chunks instead)": replace(WHOLE, batch=chunked_batch),
    "triage and response ratios (by deadline alone)": replace(WHOLE, triage=False),
    "triage, response ratios and deadlines (first come, first served)": replace(
        WHOLE, triage=False, ordering=Ordering.FCFS
    ),
    "routing to the fewest requests (instances in turn)": replace(WHOLE, route=ascendra_route),
    "routing to the fewest requests (EcoServe's rolling order)": replace(
        WHOLE, route=ecoserve_route, uses_pools=False, offload=False
    ),
}
WITH = {
    "an HP instance in three": (WHOLE, 1 / 3),
    "exact allocation": (replace(WHOLE, exact_kv=True), 0.0),
}
PARTS = Ablation(
    "all parts",
    CASES,
    {
        **{f"without {part}": {"strategy": strategy} for part, strategy in WITHOUT.items()},
        **{
            f"with {part}": {"strategy": strategy, "high_priority_ratio": ratio}
            for part, (strategy, ratio) in WITH.items()
        },
    },
)

MACRO = STRATEGIES["macro"]
RATIO = MACRO.high_priority_ratio
MACRO_WITHOUT = {
    "the HP pool": (replace(MACRO, route=ecoserve_route, uses_pools=False, offload=False), 0.0),
    "rolling activation (LP instances in turn)": (replace(MACRO, route=ascendra_route), RATIO),
    "phases and value (EconoServe's batches)": (replace(MACRO, batch=econoserve_batch), RATIO),
    "the hybrid cache": (replace(MACRO, hybrid_cache=HybridCache.NEVER), RATIO),
    "lending": (replace(MACRO, kv_lending=False), RATIO),
    "groups and order of responses (by arrival)": (
        replace(MACRO, group_by_length=False, ordering=Ordering.FCFS),
        RATIO,
    ),
    "memory for whole responses": (
        replace(MACRO, exact_kv=False, queues_responses=False, kv_lending=False),
        RATIO,
    ),
    "all of that (unified)": (WHOLE, 0.0),
}
MACRO_PARTS = Ablation(
    "macro",
    CASES,
    {
        f"macro without {part}": {"strategy": strategy, "high_priority_ratio": ratio}
        for part, (strategy, ratio) in MACRO_WITHOUT.items()
    },
    base={"strategy": MACRO, "high_priority_ratio": RATIO},
)

FIGURES = annotated(
    __name__,
    {
        "goodput": GOODPUT,
        "ceiling": CEILING,
        "p99": _strict(NEARLY_ALL),
        "tbt": _strict(EVERY_TOKEN),
        "ablation": PARTS.figure,
        "macro": MACRO_PARTS.figure,
    },
)
