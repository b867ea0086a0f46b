"""Batching policies, a module per paper: each decides the prefills and decodes of an iteration.

A policy is a function of the iteration's inputs and its admission (``scheduler/admission.py``).
"""
