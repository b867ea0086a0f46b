"""``macroserve up``: a whole deployment on this machine, from one manifest."""
