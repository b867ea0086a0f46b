"""A check of kernels and engines on a machine with a GPU, torch, Triton and Python 3.12 alone.

``archive.py`` packs what such a machine lacks. There, ``check.py`` starts the kernels' tests and
benchmark, and one process of ``engines.py`` for each engine. ``operators.py`` stands in for the
operators that vLLM has compiled.
"""
