"""Facts from a pod's status."""

from typing import Any


def is_ready(pod: dict[str, Any]) -> bool:
    """Return whether Services send requests to the pod."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
