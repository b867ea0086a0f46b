"""The operator turns a MacroInstance into pods and cells.

A round of a MacroInstance reads from ``reconcile``: observe, plan (in ``core``), apply, report.
"""
