"""Benchmarks of Macroserve, comparisons with its peers, and the experiments of papers."""
