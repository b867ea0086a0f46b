"""How the parts of a deployment prove themselves to each other: tokens, keys and TLS."""
