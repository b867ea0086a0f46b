"""The papers' experiments: their measurements, their setups, and the figures that they print."""

from collections.abc import Mapping

from macroserve.papers import aptserve, ascendra, econoserve, ecoserve, unified
from macroserve.papers.figure import Figure

PAPERS: Mapping[str, Mapping[str, Figure]] = {
    "aptserve": aptserve.FIGURES,
    "ascendra": ascendra.FIGURES,
    "econoserve": econoserve.FIGURES,
    "ecoserve": ecoserve.FIGURES,
    "unified": unified.FIGURES,
}
