"""Which cell takes a request, and which instance in it: functions from views to decisions."""
