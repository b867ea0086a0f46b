"""The Kubernetes API: client, watches, cache, Lease and the names of objects."""
