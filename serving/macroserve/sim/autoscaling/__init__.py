"""Simulation of the operator's autoscaler: starts take time and may fail, alerts are delayed, and
``core.scaling.autoscale.decide`` sets the target by the same signals."""
