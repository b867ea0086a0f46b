"""This package computes conditions, events and status from one reconcile."""
