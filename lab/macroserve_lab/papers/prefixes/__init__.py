"""Prefix-aware routing: benchmarks that other projects have published, and conversations."""
