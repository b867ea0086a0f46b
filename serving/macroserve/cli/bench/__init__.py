"""`macroserve bench`: measure running endpoints."""
