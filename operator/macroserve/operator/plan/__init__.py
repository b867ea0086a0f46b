"""The desired number of instances, and the next actions towards it."""
