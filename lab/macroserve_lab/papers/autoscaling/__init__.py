"""Autoscaling: a benchmark that llm-d has published, other times of a start, and bursts."""
