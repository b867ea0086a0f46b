"""Times as Kubernetes writes them."""

from datetime import UTC, datetime


def rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(text: str) -> datetime | None:
    """None also for what is no time with a zone: others may write annotations, too."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None
