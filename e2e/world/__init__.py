"""What the e2e tests act with: kubectl, a served model, a steady stream of requests."""
