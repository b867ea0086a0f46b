"""EcoServe, section 4: PaDG on two clusters of commodity links."""

from macroserve_lab.papers.ecoserve import (
    attainment,
    dynamic_scaling,
    goodput,
    pipelines,
    static_scaling,
)

FIGURES = {
    "goodput": goodput.FIGURE,
    "attainment": attainment.FIGURE,
    "static-scaling": static_scaling.FIGURE,
    "dynamic-scaling": dynamic_scaling.FIGURE,
    "pipelines": pipelines.FIGURE,
}
