"""Actions on pods and cells, and the objects that a MacroInstance owns."""
