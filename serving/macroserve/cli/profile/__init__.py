"""``macroserve profile``: the times that a real engine takes for its work on this machine."""
