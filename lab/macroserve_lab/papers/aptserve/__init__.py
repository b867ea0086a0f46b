"""Apt-Serve, section 6: hybrid cache and adaptive batches on A100s of 40 GB."""

from macroserve_lab.papers.aptserve import (
    ablation,
    attainment,
    burstiness,
    latencies,
    throughput,
    ultra_long,
)

FIGURES = {
    "throughput": throughput.FIGURE,
    "attainment": attainment.FIGURE,
    "burstiness": burstiness.FIGURE,
    "ablation": ablation.FIGURE,
    "latencies": latencies.FIGURE,
    "ultra-long": ultra_long.FIGURE,
}
