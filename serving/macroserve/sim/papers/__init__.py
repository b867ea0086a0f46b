"""The papers' experiments: what was measured, with what, and the figures that they print."""

from collections.abc import Mapping

from macroserve.sim.papers import ecoserve
from macroserve.sim.papers.measure import Figure

PAPERS: Mapping[str, Mapping[str, Figure]] = {"ecoserve": ecoserve.FIGURES}
