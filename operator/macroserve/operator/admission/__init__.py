"""The admission rules decide which specs and pod templates are accepted."""
