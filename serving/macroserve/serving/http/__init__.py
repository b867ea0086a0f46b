"""HTTP servers, and the limits of their connections."""
