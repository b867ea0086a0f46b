"""Recorded outcomes of the simulator, which reveal any change: all strategies, all papers.

Recorded by `PYTHONPATH=tests python lab/tests/lab_support/golden.py >
lab/tests/papers/golden_outcomes.json`, after the version of `macroserve.sim` has been raised.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from support.outcomes import scenarios

from macroserve.core.strategies import STRATEGIES
from macroserve.sim import SIMULATOR_VERSION
from macroserve.sim.results import AT_END, RunResult
from macroserve.workload.datasets import WORKLOADS
from macroserve_lab.arrivals import bursty
from macroserve_lab.papers.aptserve import cases as aptserve
from macroserve_lab.papers.ascendra import cases as ascendra
from macroserve_lab.papers.econoserve import cases as econoserve
from macroserve_lab.papers.ecoserve import cases as ecoserve

RATE, STRETCH_S = 16.0, 30.0
PAPERS_STRETCH_S = 20.0


def _of_scenario(name: str) -> RunResult:
    random = Random(0)
    lengths = WORKLOADS["ShareGPT"].lengths(random)
    arrivals = bursty(RATE, 1.0, STRETCH_S, lengths, random)
    return dict(scenarios())[name].serve(arrivals, stop=AT_END)


_PAPERS = {
    "EcoServe, CodeLlama-34B": (ecoserve.experiments(ecoserve.SCALED, "ecoserve")[0], 10.0),
    "EcoServe, MoonCake": (ecoserve.experiments(ecoserve.SCALED, "mooncake")[0], 10.0),
    "Apt-Serve, OPT-13B": (aptserve.experiment("OPT-13B", "ShareGPT", "aptserve", 5.0), 4.0),
    "Ascendra, Mistral-7B": (
        ascendra.experiment(ascendra.CHAT, STRATEGIES["ascendra"]),
        8.0,
    ),
    "EconoServe, its first model and trace": (
        econoserve.experiment(econoserve.MODELS[0], econoserve.TRACES[0], econoserve.WITH_ALL),
        20.0,
    ),
    "unified, Qwen-14B, late ones refused": (
        ascendra.experiment(ascendra.STARVED, STRATEGIES["unified"], drop_late=True),
        10.0,
    ),
}

CASES: Mapping[str, Callable[[], RunResult]] = {
    **{name: partial(_of_scenario, name) for name, _ in scenarios()},
    **{
        name: partial(experiment.serve, rate, PAPERS_STRETCH_S, stop=AT_END)
        for name, (experiment, rate) in _PAPERS.items()
    },
}


def record(outcome: RunResult) -> dict[str, Any]:
    """Return counts that a person can read, and a digest of what became of each request, whatever
    the names of its values.

    The digest has floats with nine digits: mathematical libraries differ in the last ones.
    """
    # All are of the default class.
    results = tuple(result[:-1] for result in outcome.results)
    values = (outcome.requests, outcome.attained, outcome.decided, results, outcome.kv_use)
    text = json.dumps(_rounded(values))
    return {
        "requests": outcome.requests,
        "attained": outcome.attained,
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def main() -> None:
    outcomes = {name: record(case()) for name, case in CASES.items()}
    print(json.dumps({"simulator_version": SIMULATOR_VERSION, "outcomes": outcomes}, indent=1))


if __name__ == "__main__":
    main()
