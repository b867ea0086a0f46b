"""The present state, read from the API server and the head."""
