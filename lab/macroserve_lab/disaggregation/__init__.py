"""Baselines that prefill and decode on separate instances (DistServe, MoonCake)."""
