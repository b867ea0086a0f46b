"""Read the present state from the API server and from the head."""
