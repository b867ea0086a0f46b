"""This package reads the present state from the API server and from the head."""
