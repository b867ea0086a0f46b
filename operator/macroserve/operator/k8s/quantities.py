"""Quantities in Kubernetes' format, such as ``1.5Gi``."""

from decimal import Decimal

from kubernetes.utils import parse_quantity


def parsed(text: str) -> Decimal | None:
    """Return the number, or None for a text that is not a quantity."""
    try:
        number = parse_quantity(text)
    except ValueError:
        return None
    return number if number.is_finite() else None
