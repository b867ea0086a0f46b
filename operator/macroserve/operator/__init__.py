"""The operator turns a MacroInstance into pods and cells.

A reconcile of a MacroInstance reads from ``reconcile``: observe, plan (in ``core``), apply, report.
"""
