"""Apply: carry out actions, and keep the objects that a MacroInstance owns."""
