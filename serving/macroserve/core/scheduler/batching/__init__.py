"""Batching policies, one module per paper, decide the prefills and decodes of an iteration.

A policy is a function of the iteration's inputs and its admission (``scheduler/admission.py``).
"""
