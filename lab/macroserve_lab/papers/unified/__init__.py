"""The ``unified`` strategy next to all others, on all papers' benchmarks."""
