"""Kubernetes operator that turns a MacroInstance into pods and cells.

Start reading at ``reconcile``: observe, plan (in ``core``), apply, report.
"""
