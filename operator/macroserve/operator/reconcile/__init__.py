"""This package has the work queue, and the reconcile of one MacroInstance."""
