"""An instance tells how long its start took, so that scaling knows how long the next one takes."""

import msgspec


class InstanceStart(msgspec.Struct, frozen=True):
    """An instance measures its own start."""

    total_s: float
    """Time from the begin of its process until it could serve, seconds. It has generated tokens by
    then."""
    load_s: float
    """Part of it in which the engine fetched and loaded the weights and compiled code, seconds."""
    warm_up_s: float
    """Part of it in which the engine generated its first tokens, seconds."""
    warm: bool
    """True if its caches had all weights and compiled code."""
