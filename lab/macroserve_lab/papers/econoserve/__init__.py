"""EconoServe, section 4: rates served at equal normalized latency, on A100s of 80 GB."""

from macroserve_lab.papers.econoserve import (
    ablation,
    devices,
    latency,
    overhead,
    rate,
    satisfaction,
    schedulers,
    sensitivity,
    utilisation,
)

FIGURES = {
    "rate": rate.FIGURE,
    "latency": latency.FIGURE,
    "utilisation": utilisation.FIGURE,
    "devices": devices.FIGURE,
    "ablation": ablation.FIGURE,
    "schedulers": schedulers.FIGURE,
    "satisfaction": satisfaction.FIGURE,
    "overhead": overhead.FIGURE,
    "sensitivity": sensitivity.FIGURE,
}
