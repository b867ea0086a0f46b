"""Routing chooses a cell for a request and an instance in it, by functions from views to
decisions."""
