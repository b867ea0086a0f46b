"""Ascendra, section 8: LP and HP instances against vLLM and Sarathi, on three A100s."""

from macroserve_lab.papers.ascendra import (
    appendix,
    attainment,
    breakdown,
    goodput,
    model_error,
    ordering,
    overload,
    strictness,
    tickets,
    variants,
)

FIGURES = {
    "goodput": goodput.FIGURE,
    "variants": variants.FIGURE,
    "attainment": attainment.FIGURE,
    "strictness": strictness.FIGURE,
    "overload": overload.FIGURE,
    "ordering": ordering.FIGURE,
    "model-error": model_error.FIGURE,
    "breakdown": breakdown.FIGURE,
    "tickets": tickets.FIGURE,
    "appendix": appendix.FIGURE,
}
