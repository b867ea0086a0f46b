"""Observe: what is there, read from the API and from the head."""
