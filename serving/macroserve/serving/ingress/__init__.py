"""The ingress, which serves the public API and forwards each request to an instance."""
