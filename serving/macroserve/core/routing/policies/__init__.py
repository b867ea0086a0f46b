"""Routing policies, a module per paper: each chooses an instance of a cell for a request."""
