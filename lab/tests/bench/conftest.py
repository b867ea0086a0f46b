"""Tests of benchmarks that start engines in this process."""

from support.frozen_heap import frozen_heap

__all__ = ["frozen_heap"]
