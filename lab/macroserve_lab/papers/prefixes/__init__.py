"""Prefix-aware routing: benchmarks that other projects have published, and conversations."""

from macroserve_lab.papers.prefixes import conversations, mooncake, published

FIGURES = {**published.FIGURES, "conversations": conversations.FIGURE}
RECORDED = {"mooncake": mooncake.figure}
"""Figures of a recorded load, made from its trace."""
