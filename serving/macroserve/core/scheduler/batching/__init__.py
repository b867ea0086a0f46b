"""Batching policies, one module per paper: functions of an iteration's inputs and its admission
that return a plan."""
