"""Capacity of a load: planning, pools, and the check before a scale-down."""
