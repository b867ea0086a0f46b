"""The head: it starts the cell schedulers of a deployment and answers for all of them."""
