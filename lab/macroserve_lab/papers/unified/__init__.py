"""The ``unified`` strategy beside all others, on all papers' benchmarks."""

from macroserve_lab.papers.unified import ceiling, goodput, macro, parts, strict

FIGURES = {
    "goodput": goodput.FIGURE,
    "ceiling": ceiling.FIGURE,
    "p99": strict.NEARLY_ALL_FIGURE,
    "tbt": strict.EVERY_TOKEN_FIGURE,
    "ablation": parts.FIGURE,
    "macro": macro.FIGURE,
}
