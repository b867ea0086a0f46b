"""Apt-Serve, section 6: hybrid cache and adaptive batches on A100s of 40 GB."""

from macroserve.papers.aptserve import ablation, attainment, throughput

FIGURES = {
    "throughput": throughput.FIGURE,
    "attainment": attainment.FIGURE,
    "ablation": ablation.FIGURE,
}
