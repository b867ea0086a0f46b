"""The claims of the four papers' abstracts, each with our figure."""
