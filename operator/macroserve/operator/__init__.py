"""The operator: a MacroInstance in, pods and cells out.

A round of a MacroInstance reads from ``reconcile``: observe, plan (in ``core``), apply, report.
"""
