"""Compute conditions, events and status from one reconcile."""
