"""A cell scheduler: it routes requests to the instances of its cell."""
