"""The head, which starts the cell schedulers of a deployment and reports on them."""
