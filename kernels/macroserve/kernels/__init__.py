"""Triton kernels of the hybrid cache, one operation a file, each beside its reference in torch."""
