"""Every paper's own benchmark, under any strategy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from macroserve.core.strategy import STRATEGIES
from macroserve.sim.experiment import Experiment
from macroserve.sim.papers import aptserve, ascendra, econoserve
from macroserve.sim.papers.ecoserve import cases as ecoserve
from macroserve.sim.papers.figure import Row
from macroserve.sim.papers.measurements import Goodput, Measurement, RateAtLatency, Values
from macroserve.sim.record import as_client, as_ecoserve

DURATION_S = 600.0

CHUNKS = (256, 512, 1024, 2048)
"""Of Sarathi's, the best counts."""

UNIFIED = "unified"
DROPPING = "unified, late ones refused"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One case of a paper. own: that paper's strategy. experiment: with any strategy.
    limit_s: of the mean normalised latency, where that is the measure and not goodput.
    level: of the goodput."""

    paper: str
    name: str
    own: str
    experiment: Experiment
    lowest: float
    limit_s: float | None = None
    level: float = 0.9

    def measurement(self, variant: str, experiments: Sequence[Experiment]) -> Measurement:
        key = self.key(variant)
        if self.limit_s is None:
            return Goodput(key, tuple(experiments), self.level, DURATION_S, self.lowest)
        (experiment,) = experiments
        return RateAtLatency(key, experiment, self.limit_s, DURATION_S, self.lowest)

    def key(self, variant: str) -> str:
        return f"{self.paper}, {self.name}: {variant}"

    def variants(self) -> Mapping[str, Sequence[Experiment]]:
        """Each strategy with the knobs of which the best counts."""
        base = self.experiment
        found: dict[str, Sequence[Experiment]] = {}
        for name, strategy in STRATEGIES.items():
            fields = {"strategy": strategy, "high_priority_ratio": strategy.high_priority_ratio}
            if name == "ecoserve":
                is_its_own = self.paper == "ecoserve" and base.setup.judge is as_client
                fields["judge"] = as_ecoserve if is_its_own else base.setup.judge
            found[name] = [with_setup(base, **fields)]
        (sarathi,) = found["sarathi"]
        chunked = {size: with_setup(sarathi, chunk_tokens=size) for size in CHUNKS}
        if self.limit_s is None:
            found["sarathi"] = list(chunked.values())
            found[DROPPING] = [with_setup(base, drop_late=True)]
        else:
            del found["sarathi"]
            found |= {f"sarathi {size}": [each] for size, each in chunked.items()}
        return found


def with_setup(experiment: Experiment, **fields: object) -> Experiment:
    return replace(experiment, setup=replace(experiment.setup, **fields))


BENCHMARKS = (
    *[
        Benchmark(
            "ecoserve",
            f"{case.cluster}, {case.model}, {case.workload}",
            "ecoserve",
            ecoserve.experiments(case, UNIFIED)[0],
            ecoserve.LOWEST[case.workload],
        )
        for case in ecoserve.CASES
    ],
    *[
        Benchmark(
            "aptserve",
            f"{model}, {name}",
            "aptserve",
            aptserve.experiment(model, name, UNIFIED),
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
            econoserve.experiment(model, trace, STRATEGIES[UNIFIED]),
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
            ascendra.experiment(case, STRATEGIES[UNIFIED]),
            ascendra.LOWEST,
        )
        for case in ascendra.CASES
    ],
)
PAPERS = tuple(dict.fromkeys(benchmark.paper for benchmark in BENCHMARKS))


def measurements(benchmarks: Sequence[Benchmark]) -> list[Measurement]:
    """Every variant of each."""
    return [
        benchmark.measurement(variant, experiments)
        for benchmark in benchmarks
        for variant, experiments in benchmark.variants().items()
    ]


def gains(figure: str, benchmarks: Sequence[Benchmark], values: Values) -> list[Row]:
    """What ``unified`` holds over each paper's strategy and over the best of all others: the mean
    of the paper's cases, and the worst of them."""

    def held(benchmark: Benchmark, variant: str) -> float:
        return max(values[benchmark.key(variant)], benchmark.lowest)

    def over_own(benchmark: Benchmark) -> float:
        return held(benchmark, UNIFIED) / held(benchmark, benchmark.own)

    def over_best(benchmark: Benchmark) -> float:
        others = [name for name in benchmark.variants() if not name.startswith(UNIFIED)]
        return held(benchmark, UNIFIED) / max(held(benchmark, name) for name in others)

    rows: list[Row] = []
    for paper in PAPERS:
        cases = [benchmark for benchmark in benchmarks if benchmark.paper == paper]
        if not cases:
            continue
        for name, gain in (("its own strategy", over_own), ("the best other", over_best)):
            found = [gain(benchmark) for benchmark in cases]
            for kind, ours in (("mean", mean(found)), ("worst case", min(found))):
                case, strategy = f"{paper}, {kind}", f"{UNIFIED} over {name}"
                rows.append(Row(figure, case, strategy, "times", ours, is_summary=True))
    return rows


def rates(figure: str, benchmarks: Sequence[Benchmark], values: Values) -> list[Row]:
    return [
        Row(
            figure,
            f"{benchmark.paper}, {benchmark.name}",
            variant,
            "requests/s",
            values[benchmark.key(variant)],
        )
        for benchmark in benchmarks
        for variant in benchmark.variants()
    ]
