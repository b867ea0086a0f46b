"""Requests that come, as a command line tells of them: recorded, or drawn from distributions."""
