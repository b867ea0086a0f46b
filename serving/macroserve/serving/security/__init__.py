"""Tokens, keys and TLS, by which the components of a deployment authenticate each other."""
