"""Figures in a status are short texts, since a person reads them."""


def ratio(part: int, whole: int) -> str | None:
    """Return a ratio with two decimals, rounded down so that only 1.00 means all, or None of
    nothing."""
    return f"{100 * part // whole / 100:.2f}" if whole else None
