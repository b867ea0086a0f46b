"""A check of kernels and engines on a machine that only has a GPU, torch, Triton and Python 3.12.

``archive.py`` packs everything else. On the machine, ``check.py`` runs the kernels' tests and
benchmark, and one process of ``engines.py`` for each engine. ``operators.py`` replaces vLLM's
compiled operators.
"""
