"""Report: conditions, events and status, computed from one reconcile."""
