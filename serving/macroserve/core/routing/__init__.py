"""Choice of a cell for a request, and of an instance in it: functions from views to decisions."""
