"""Configuration of the data plane's logs: JSON in pods, readable text on terminals."""

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from macroserve.api.logs import formatter

FILE_VARIABLE = "MACROSERVE_LOG_FILE"
"""Environment variable with the log file of the processes of ``macroserve up``."""
_QUIET = ("aiohttp.access", "httpx", "httpx2", "ray", "ray.serve")
"""Loggers that write a line for each call or step."""


def configure() -> None:
    """Log to the file of FILE_VARIABLE, or to standard error."""
    file = os.environ.get(FILE_VARIABLE)
    stream = Path(file).open("a", buffering=1) if file else sys.stderr  # noqa: SIM115 - until the end
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(readable=bool(file) or stream.isatty(), colors=_colors(stream)))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("vllm").setLevel(logging.WARNING)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


def _colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
