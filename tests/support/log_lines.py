"""Fields of captured log lines, as a pod writes them."""

import json
from typing import Any

import pytest

from macroserve.api.logs import formatter


def log_lines(caplog: pytest.LogCaptureFixture, logger: str = "") -> list[dict[str, Any]]:
    """Return the lines of the loggers whose names begin with ``logger``, without timestamps."""
    lines = formatter(readable=False)
    found = [json.loads(lines.format(r)) for r in caplog.records if r.name.startswith(logger)]
    for line in found:
        del line["timestamp"]
    return found
