"""Carry out actions, and keep the objects that a MacroInstance owns."""
