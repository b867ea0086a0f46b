"""Reconcile: the work queue, and one reconcile of one MacroInstance."""
