"""Hostile requests, which an endpoint has to answer with a client error."""
