"""The `macroserve` command."""
