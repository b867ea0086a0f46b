"""Decisions on how many instances run in which cells and pools: functions over cells."""
