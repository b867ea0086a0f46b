"""Configurations of models and adapters, which are JSON objects in files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def json_object(path: Path) -> Mapping[str, Any]:
    """Return the object in a file. Raises ValueError if the file is unreadable or no object."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read as JSON") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found
