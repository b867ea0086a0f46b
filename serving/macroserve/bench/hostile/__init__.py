"""Hostile requests: what an endpoint has to answer with an error that is the client's."""
