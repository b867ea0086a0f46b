"""``macroserve reproduce``: the papers' figures beside those of the simulator."""
