"""Conditions, events and status, computed from one reconcile."""
