"""The e2e tests act with these helpers: kubectl, a served model, a steady stream of requests."""
