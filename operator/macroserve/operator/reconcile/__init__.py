"""Reconcile MacroInstances one by one, as the work queue orders them."""
