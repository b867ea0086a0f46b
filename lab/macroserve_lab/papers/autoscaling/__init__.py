"""Autoscaling: a benchmark that llm-d has published, other times of a start, and bursts."""

from macroserve_lab.papers.autoscaling import bursts, published

FIGURES = {**published.FIGURES, "bursts": bursts.FIGURE}
RECORDED = {"azure": bursts.recorded_figure}
"""Figures of a recorded load, made from its trace."""
