"""The Kubernetes API: client, watches, cache, Lease and names of objects."""
