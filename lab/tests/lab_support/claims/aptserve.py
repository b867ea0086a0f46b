"""Loads and results for tests of Apt-Serve's claims."""

from dataclasses import replace
from functools import cache

from macroserve.core.tuning import Tuning
from macroserve_lab.papers.aptserve.cases import experiment

BEYOND = {"ShareGPT": (3.0, 40.0), "HumanEval": (16.0, 15.0), "LongBench": (2.0, 40.0)}
"""Rates beyond the baselines' goodputs, requests/s, with durations in seconds."""


@cache
def attainment(
    name: str, variant: str, rate: float, duration_s: float, chunk_tokens: int | None = None
) -> float:
    """Return the attainment of OPT-13B for a load."""
    chosen = experiment("OPT-13B", name, variant)
    if chunk_tokens is not None:
        scenario = replace(chosen.scenario, tuning=Tuning(chunk_tokens=chunk_tokens))
        chosen = replace(chosen, scenario=scenario)
    return chosen.serve(rate, duration_s).attainment
