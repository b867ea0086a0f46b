"""How many instances, in which cells and pools: functions from cells to ordered decisions."""
