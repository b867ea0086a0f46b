"""Times in Kubernetes' format."""

from datetime import UTC, datetime


def rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(text: str) -> datetime | None:
    """Return the time, or None for a text, written by others, that is not a time with a zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None
