"""Ray: cell schedulers as Serve applications, and the addresses of what serves."""
