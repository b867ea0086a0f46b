"""Scaling decides how many instances run in which cells and pools, by functions over cells."""
