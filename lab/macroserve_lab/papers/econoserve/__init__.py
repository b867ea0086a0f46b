"""EconoServe, section 4: rates served at equal normalized latency, on A100s of 80 GB."""
