"""Durations and memory sizes with units, as users write and read them."""

import math
import re

_SECONDS_PER = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION = re.compile(r"([0-9]+(\.[0-9]+)?(ms|h|m|s))+")
_DURATION_PART = re.compile(r"([0-9.]+)([a-z]+)")
_BYTES_PER = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"([0-9]{1,12})([KMGT]iB)")


def parse_seconds(text: str) -> float:
    """Return ``1m30s`` as 90.0. Raises ValueError for anything but a finite duration."""
    parts = _DURATION_PART.findall(text) if _DURATION.fullmatch(text) else []
    seconds = sum(float(number) * _SECONDS_PER[unit] for number, unit in parts)
    if not parts or not math.isfinite(seconds):
        raise ValueError(f"{text!r} is not a duration such as 5s, 100ms or 1m30s")
    return seconds


def format_seconds(seconds: float) -> str:
    """Return a duration with two digits, such as ``21ms``, ``1.5s`` or ``-12s``.

    ``parse_seconds`` reads the text unless it is negative or infinite.
    """
    rounded = float(f"{seconds:.2g}")
    if 0 < abs(rounded) < 1:
        return f"{float(f'{1e3 * rounded:.2g}'):.15g}ms"
    return f"{rounded:.15g}s"


def parse_bytes(text: str) -> int:
    """Return ``256MiB`` as 268435456. Raises ValueError for anything but a memory size."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a memory size such as 256MiB or 2GiB")
    return int(match[1]) * _BYTES_PER[match[2]]
