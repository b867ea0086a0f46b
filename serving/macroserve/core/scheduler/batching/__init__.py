"""Each batching policy, one module per paper, decides the prefills and decodes of an iteration.

A policy is a function of the iteration's inputs and its admission (``scheduler/admission.py``).
"""
