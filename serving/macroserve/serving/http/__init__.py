"""HTTP servers and what holds of every connection and body."""
