"""Decide how many instances there should be, and the next actions towards them."""
