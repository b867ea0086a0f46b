"""``unified`` on each paper's own benchmark, beside that paper's strategy and all others at their
best, and what each of its parts gains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from macroserve.core.strategy import STRATEGIES
from macroserve.sim.experiment import Experiment
from macroserve.sim.papers import aptserve, ascendra, econoserve
from macroserve.sim.papers.ecoserve import cases as ecoserve
from macroserve.sim.papers.figure import Figure, Row
from macroserve.sim.papers.measurements import Goodput, Measurement, RateAtLatency, Values
from macroserve.sim.record import as_ecoserve

DURATION_S = 600.0
LEVEL = 0.9

CHUNKS = (256, 512, 1024, 2048)
"""Of Sarathi's, the best counts."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One case of a paper. own: that paper's strategy. experiment: with any strategy.
    limit_s: of the mean normalised latency, where that is the measure and not goodput."""

    paper: str
    name: str
    own: str
    experiment: Experiment
    lowest: float
    limit_s: float | None = None

    def measurement(self, key: str, experiments: Sequence[Experiment]) -> Measurement:
        if self.limit_s is None:
            return Goodput(key, tuple(experiments), LEVEL, DURATION_S, self.lowest)
        (experiment,) = experiments
        return RateAtLatency(key, experiment, self.limit_s, DURATION_S, self.lowest)

    def key(self, variant: str) -> str:
        return f"{self.paper}, {self.name}: {variant}"


BENCHMARKS = (
    *[
        Benchmark(
            "ecoserve",
            f"{case.cluster}, {case.model}, {case.workload}",
            "ecoserve",
            ecoserve.experiments(case, "unified")[0],
            ecoserve.LOWEST[case.workload],
        )
        for case in ecoserve.CASES
    ],
    *[
        Benchmark(
            "aptserve",
            f"{model}, {name}",
            "aptserve",
            aptserve.experiment(model, name, "unified"),
            aptserve.LOWEST[name],
        )
        for model in aptserve.RANKS
        for name in aptserve.SETS
    ],
    *[
        Benchmark(
            "econoserve",
            f"{model.name}, {trace.workload}",
            "econoserve",
            econoserve.experiment(model, trace, STRATEGIES["unified"]),
            trace.lowest,
            econoserve.LATENCY_S,
        )
        for model in econoserve.MODELS
        for trace in econoserve.TRACES
    ],
    *[
        Benchmark(
            "ascendra",
            case.name,
            "ascendra",
            ascendra.experiment(case, STRATEGIES["unified"]),
            ascendra.LOWEST,
        )
        for case in ascendra.CASES
    ],
)
PAPERS = tuple(dict.fromkeys(benchmark.paper for benchmark in BENCHMARKS))
DROPPING = "unified, late ones refused"


def _with(experiment: Experiment, **fields: object) -> Experiment:
    return replace(experiment, setup=replace(experiment.setup, **fields))


def _variants(benchmark: Benchmark) -> Mapping[str, Sequence[Experiment]]:
    """Each strategy with the knobs of which the best counts."""
    base = benchmark.experiment
    found: dict[str, Sequence[Experiment]] = {}
    for name, strategy in STRATEGIES.items():
        fields = {"strategy": strategy, "high_priority_ratio": strategy.high_priority_ratio}
        if name == "ecoserve":
            fields["judge"] = as_ecoserve if benchmark.paper == "ecoserve" else base.setup.judge
        found[name] = [_with(base, **fields)]
    if benchmark.limit_s is None:
        found["sarathi"] = [_with(found["sarathi"][0], chunk_tokens=size) for size in CHUNKS]
        found[DROPPING] = [_with(base, drop_late=True)]
    else:
        for size in CHUNKS:
            found[f"sarathi {size}"] = [_with(found["sarathi"][0], chunk_tokens=size)]
        del found["sarathi"]
    return found


def goodput_measurements() -> list[Measurement]:
    return [
        benchmark.measurement(benchmark.key(variant), experiments)
        for benchmark in BENCHMARKS
        for variant, experiments in _variants(benchmark).items()
    ]


def goodput_rows(values: Values) -> list[Row]:
    """Gains on each paper's benchmark, averaged over its cases, and the worst case; then rates."""

    def held(benchmark: Benchmark, variant: str) -> float:
        return max(values[benchmark.key(variant)], benchmark.lowest)

    def over_own(benchmark: Benchmark) -> float:
        return held(benchmark, "unified") / held(benchmark, benchmark.own)

    def over_best(benchmark: Benchmark) -> float:
        others = [name for name in _variants(benchmark) if not name.startswith("unified")]
        return held(benchmark, "unified") / max(held(benchmark, name) for name in others)

    rows: list[Row] = []
    for paper in PAPERS:
        cases = [benchmark for benchmark in BENCHMARKS if benchmark.paper == paper]
        for name, gain in (("its own strategy", over_own), ("the best other", over_best)):
            gains = [gain(benchmark) for benchmark in cases]
            for kind, figure in (("mean", mean(gains)), ("worst case", min(gains))):
                case, strategy = f"{paper}, {kind}", f"unified over {name}"
                rows.append(Row("goodput", case, strategy, "times", figure, is_summary=True))
    for benchmark in BENCHMARKS:
        case = f"{benchmark.paper}, {benchmark.name}"
        for variant in _variants(benchmark):
            rate = values[benchmark.key(variant)]
            rows.append(Row("goodput", case, variant, "requests/s", rate))
    return rows


FIGURES = {"goodput": Figure(goodput_measurements, goodput_rows)}
