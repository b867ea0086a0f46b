"""Durations, formatted for people."""


def seconds(value_s: float | None) -> str:
    """Return a duration in seconds or milliseconds; a dash for None."""
    if value_s is None:
        return "-"
    return f"{value_s:.2f} s" if value_s >= 1 else f"{value_s * 1e3:.1f} ms"
