"""An ablation compares a strategy with variants that lack a part of it, or have one more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean

from macroserve_lab.experiment import Experiment
from macroserve_lab.papers.figure import Figure, Row
from macroserve_lab.papers.measurements import Measurement, Values
from macroserve_lab.papers.unified.benchmarks import Benchmark, with_scenario


@dataclass(frozen=True, slots=True)
class Ablation:
    """The ablation searches the rate that each variant holds in each case.

    whole: name of the strategy with all parts.
    cases: benchmarks, of which the scenarios count.
    changes: fields of the scenario that a variant has otherwise, by its name.
    base: fields of the scenario that all variants have.
    """

    whole: str
    cases: tuple[Benchmark, ...]
    changes: Mapping[str, Mapping[str, object]]
    base: Mapping[str, object] = field(default_factory=dict)

    def figure(self, explanation: str = "") -> Figure:
        return Figure(self.measurements, self.rows, explanation)

    def measurements(self) -> list[Measurement]:
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

    def rows(self, values: Values) -> list[Row]:
        """Return the change of the rate held in each variant, in percent, and its mean."""

        def held(case: Benchmark, variant: str) -> float:
            return max(values[case.key(variant)], case.lowest)

        def change(case: Benchmark, variant: str) -> float:
            return 100 * (held(case, variant) / held(case, self.whole) - 1)

        def row(title: str, variant: str, percent: float, *, is_summary: bool = False) -> Row:
            return Row("ablation", title, variant, "rate in %", percent, is_summary=is_summary)

        means = {name: mean(change(case, name) for case in self.cases) for name in self.changes}
        return [
            *[row("mean of all cases", name, means[name], is_summary=True) for name in means],
            *[
                row(f"{case.paper}, {case.name}", name, change(case, name))
                for case in self.cases
                for name in self.changes
            ],
        ]
