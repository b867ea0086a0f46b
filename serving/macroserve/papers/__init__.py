"""The experiments of papers and of other projects: measurements, setups, and the figures that they
print."""

from collections.abc import Mapping

from macroserve.papers import aptserve, ascendra, econoserve, ecoserve, prefixes, unified
from macroserve.papers.figure import Figure

PAPERS: Mapping[str, Mapping[str, Figure]] = {
    "aptserve": aptserve.FIGURES,
    "ascendra": ascendra.FIGURES,
    "econoserve": econoserve.FIGURES,
    "ecoserve": ecoserve.FIGURES,
    "prefixes": prefixes.FIGURES,
    "unified": unified.FIGURES,
}
