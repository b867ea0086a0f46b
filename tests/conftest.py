"""The fixtures and hooks here apply to every test."""

from hypothesis import HealthCheck, settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
