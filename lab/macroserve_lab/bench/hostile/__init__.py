"""Hostile requests, which an endpoint must answer with a client error."""
