"""The papers' own benchmarks, under any strategy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from macroserve.core.routing.policies import ascendra_route
from macroserve.core.strategies import STRATEGIES
from macroserve.core.tuning import Tuning
from macroserve.sim.results import as_client
from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.aptserve import cases as aptserve
from macroserve_lab.papers.ascendra import cases as ascendra
from macroserve_lab.papers.econoserve import cases as econoserve
from macroserve_lab.papers.econoserve.figures import LATENCY_S
from macroserve_lab.papers.ecoserve import cases as ecoserve
from macroserve_lab.papers.figure import Claim, Quantity
from macroserve_lab.papers.measurements import (
    BestOf,
    Goodput,
    Measurement,
    RateAtLatency,
    Search,
    Values,
)
from macroserve_lab.papers.sweep import Pool, reading
from macroserve_lab.slo_rules import as_ecoserve

DURATION_S = 600.0

CHUNKS = (128, 256, 512, 1024, 2048)
"""Token budgets of Sarathi; the best one counts."""

BASELINE = "prefill-first"
ALONE = f"{BASELINE} alone"
"""The baseline by itself, which is also measured as one of the others."""
UNIFIED = "unified"
LARGEST_CHUNK = "vllm"
"""Sarathi's schedule with the whole batch as its chunk, which ``CHUNKS`` stop short of."""
BEST_OTHER = "the best other"
DROPPING = "unified, late ones refused"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One case of a paper.

    own: the paper's strategy.
    experiment: an experiment with any strategy; EconoServe's predictor of lengths is part of it.
    lowest: the rate to begin at, requests per second.
    limit_s: limit on the mean normalized latency, where the benchmark measures that and not
        goodput.
    level: attainment of the goodput.
    """

    paper: str
    name: str
    own: str
    experiment: Experiment
    lowest: float
    limit_s: float | None = None
    level: float = 0.9

    def search(self, variant: str, experiment: Experiment) -> Search:
        key = self.key(variant)
        if self.limit_s is None:
            return Goodput(key, experiment, self.level, DURATION_S, self.lowest)
        return RateAtLatency(key, experiment, self.limit_s, DURATION_S, self.lowest)

    def key(self, variant: str) -> str:
        return f"{self.paper}, {self.name}: {variant}"

    def best_other(self) -> BestOf:
        """Return the searches of all other strategies and settings, the paper's own first."""
        others = self._others()
        names = sorted(others, key=lambda name: name != self.own)
        searches = [self.search(name, others[name]) for name in names]
        return BestOf(self.key(BEST_OTHER), tuple(searches))

    def named_best(self, values: Values) -> str:
        winner = self.best_other().winner(values).key.removeprefix(self.key(""))
        return f"{BEST_OTHER}: {winner}"

    def measurements(self) -> list[Measurement]:
        """Return the measurements of ``unified``, of every paper's baseline, and of the best of all
        others."""
        found: list[Measurement] = [
            self.search(UNIFIED, self.experiment),
            self.best_other(),
            self.search(ALONE, self._others()[BASELINE]),
        ]
        if self.limit_s is None:  # a mean would fall with each that is refused
            found.append(self.search(DROPPING, with_scenario(self.experiment, drop_late=True)))
        return found

    def _others(self) -> Mapping[str, Experiment]:
        base = self.experiment
        found: dict[str, Experiment] = {}
        for name, strategy in STRATEGIES.items():
            if name in (UNIFIED, LARGEST_CHUNK):
                continue
            fields = {"strategy": strategy, "high_priority_ratio": strategy.high_priority_ratio}
            if name == "ecoserve":
                is_its_own = self.paper == "ecoserve" and base.scenario.slo_rule is as_client
                fields["slo_rule"] = as_ecoserve if is_its_own else base.scenario.slo_rule
            found[name] = with_scenario(base, **fields)
        sarathi = found.pop("sarathi")
        chunked = {
            f"sarathi {size}": with_scenario(sarathi, tuning=Tuning(chunk_tokens=size))
            for size in CHUNKS
        }
        strategy, _ = ecoserve.VARIANTS[ecoserve.BY_PERCENTILE]
        by_percentile = with_scenario(found["ecoserve"], strategy=strategy)
        found |= chunked | {ecoserve.BY_PERCENTILE: by_percentile}
        if base.scenario.cluster.num_instances > 1:
            for name in (BASELINE, *chunked):
                found[f"{name}, in turn"] = _in_turn(found[name])
        return found


def _in_turn(experiment: Experiment) -> Experiment:
    """Return the experiment with a router that ignores the state of its instances."""
    strategy = replace(experiment.scenario.strategy, route=ascendra_route, uses_pools=True)
    return with_scenario(experiment, strategy=strategy)


def with_scenario(experiment: Experiment, **fields: object) -> Experiment:
    return replace(experiment, scenario=replace(experiment.scenario, **fields))


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
            econoserve.experiment(
                model, trace, replace(econoserve.WITH_ALL, strategy=STRATEGIES[UNIFIED])
            ),
            trace.lowest,
            LATENCY_S,
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


def measurements(benchmarks: Sequence[Benchmark]) -> list[Measurement]:
    return [measured for benchmark in benchmarks for measured in benchmark.measurements()]


def gains(benchmarks: Sequence[Benchmark]) -> list[Claim]:
    """Return the gains of ``unified`` over each paper's strategy, over the best of all others and
    over vLLM: the mean of a paper's cases, and the worst of them."""

    def over(
        cases: Sequence[Benchmark], key_of: Callable[[Benchmark], str], pool: Pool
    ) -> Quantity:
        pairs = [(case.key(UNIFIED), key_of(case), case.lowest) for case in cases]
        return lambda values: pool(
            max(values[ours], lowest) / max(values[theirs], lowest)
            for ours, theirs, lowest in pairs
        )

    return [
        Claim(
            f"{group}, {kind}",
            f"{UNIFIED} over {name}",
            "times",
            over(cases, key_of, pool),
            is_summary=True,
        )
        for group, cases in _groups(benchmarks).items()
        for name, key_of in (
            ("its own strategy", lambda case: case.key(case.own)),
            (BEST_OTHER, lambda case: case.key(BEST_OTHER)),
            (BASELINE, lambda case: case.key(ALONE)),
        )
        for kind, pool in (("mean", mean), ("worst case", min))
    ]


def _groups(benchmarks: Sequence[Benchmark]) -> Mapping[str, Sequence[Benchmark]]:
    """Return the benchmarks by paper; EcoServe's also without Alpaca, whose requests are so short
    that every strategy serves them well."""
    groups: dict[str, list[Benchmark]] = {}
    for benchmark in benchmarks:
        groups.setdefault(benchmark.paper, []).append(benchmark)
        if benchmark.paper == "ecoserve" and "Alpaca" not in benchmark.name:
            groups.setdefault("ecoserve but Alpaca", []).append(benchmark)
    return groups


def rates(benchmarks: Sequence[Benchmark]) -> list[Claim]:
    """Return the rates held, with the name of the best other strategy in its row."""
    found: list[Claim] = []
    for benchmark in benchmarks:
        named: dict[str, str | Callable[[Values], str]] = {
            UNIFIED: UNIFIED,
            DROPPING: DROPPING,
            benchmark.own: benchmark.own,
            ALONE: BASELINE,
            BEST_OTHER: benchmark.named_best,
        }
        if benchmark.limit_s is not None:
            del named[DROPPING]
        found += [
            Claim(
                f"{benchmark.paper}, {benchmark.name}",
                name,
                "requests/s",
                reading(benchmark.key(variant)),
            )
            for variant, name in named.items()
        ]
    return found
