"""Tokens, keys and TLS by which the parts of a deployment prove themselves to each other."""
