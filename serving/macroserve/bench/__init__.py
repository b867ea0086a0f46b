"""Benchmarks measure endpoints, and Macroserve's own engines, schedulers and hostile cases."""
