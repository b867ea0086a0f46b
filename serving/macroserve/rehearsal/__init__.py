"""A rehearsal: vLLM's API, scheduler and block pool are real, and a step takes as long as on a
modelled device, but computes nothing.

vLLM loads this package by its entry point; see `macroserve.engine.rehearsal`.
"""

from macroserve.engine.rehearsal import Rehearsal, rehearsal


def platform() -> str | None:
    """Return the platform's class where a device is to be rehearsed."""
    return "macroserve.rehearsal.platform.RehearsalPlatform" if rehearsal() else None


def rehearsed() -> Rehearsal:
    """Return what this process rehearses. Raises RuntimeError if nothing."""
    found = rehearsal()
    if found is None:
        raise RuntimeError("this process rehearses no device")
    return found
