"""Commands that the laboratory adds to `macroserve`."""
