"""Requests to send or to simulate: arrivals, lengths, data sets and traces."""
