"""``macroserve plan``: the cheapest configuration that keeps a manifest's targets under a load."""
