"""Reconciles of MacroInstances, one by one, in the order of a work queue."""
