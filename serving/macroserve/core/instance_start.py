"""Measured start time of an instance, from which scaling predicts the next start."""

import msgspec


class InstanceStart(msgspec.Struct, frozen=True):
    """An instance's own measurement of its start."""

    total_s: float
    """Time from the start of its process until it could serve, after a warm-up, seconds."""
    load_s: float
    """Part of it spent on fetching and loading weights and compiling code, seconds."""
    warm_up_s: float
    """Part of it spent on generating the first tokens, seconds."""
    warm: bool
    """Whether its caches had all weights and compiled code."""
