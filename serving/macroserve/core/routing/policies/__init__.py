"""Each routing policy, one module per paper, chooses an instance of a cell for a request."""
