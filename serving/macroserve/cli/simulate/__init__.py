"""``macroserve simulate``: a manifest's deployment under a load, in virtual time."""
