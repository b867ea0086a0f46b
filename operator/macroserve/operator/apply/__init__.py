"""This package carries out actions and keeps the objects that a MacroInstance owns."""
