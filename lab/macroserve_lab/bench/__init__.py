"""Benchmarks of Macroserve's engines, schedulers and deployments."""
