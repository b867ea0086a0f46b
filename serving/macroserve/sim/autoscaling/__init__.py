"""Simulate the operator's autoscaler in virtual time: starts take time and may fail, alerts come
late, and the target is decided by ``core.scaling.autoscale.decide`` from the same signals."""
