"""Requests to send or to simulate: when they come, how long they are, data sets and traces."""
