"""Apt-Serve, section 6: hybrid cache and adaptive batches on A100s of 40 GB."""
