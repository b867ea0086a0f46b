"""Routing policies, one module per paper, choose an instance of a cell for a request."""
