"""Helpers of the e2e tests: kubectl, a served model, a steady stream of requests."""
