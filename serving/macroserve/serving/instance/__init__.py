"""The instance: an engine behind HTTP, and the control process that watches it."""
