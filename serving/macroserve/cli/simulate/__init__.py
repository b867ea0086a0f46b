"""``macroserve simulate``: a manifest's deployment in virtual time, on devices that need not be
there."""
