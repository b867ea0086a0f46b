"""Rules that decide which specs and pod templates are accepted."""
