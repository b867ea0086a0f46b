"""Ray: cell schedulers as Serve applications, and a registry of addresses."""
