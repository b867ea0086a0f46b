"""The cell scheduler, which routes requests to the instances of its cell."""
