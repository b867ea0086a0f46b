"""``macroserve profile``: what a real engine takes for its work on this machine."""
