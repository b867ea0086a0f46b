"""Triton kernels of the hybrid cache, one operation per file, each next to its torch reference."""
