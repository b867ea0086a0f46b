"""Logs of the data plane: one line an event, as JSON in a pod and readable on a terminal.

Each module logs events with their ids as fields. The records are the standard library's, so that
lines of other libraries come out in the same form.
"""

import logging
import os
import sys
from pathlib import Path
from typing import TextIO

import structlog

FILE_VARIABLE = "MACROSERVE_LOG_FILE"
"""Environment variable with the file that ``macroserve up`` has its processes log to."""
_QUIET = ("aiohttp.access", "httpx", "httpx2", "ray", "ray.serve")
"""Loggers that tell of every call or of every step of their own."""
_FOREIGN_FIELDS = frozenset({"_ray_timestamp_ns", "message", "vllm_process_name"})


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module, which takes fields as keyword arguments."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def configure() -> None:
    """Set the logs of this process up: into the file of FILE_VARIABLE, or on standard error."""
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


def formatter(readable: bool, colors: bool = False) -> logging.Formatter:
    """Return the formatter of all lines: for people, or JSON objects."""
    # Tracebacks without the values of variables: those are prompts and keys, too.
    traceback = structlog.dev.plain_traceback
    render = (
        [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)]
        if readable
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _without_foreign_fields,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )


def _without_foreign_fields(
    logger: object, method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Leave out what Ray, vLLM and other formatters add to each record."""
    return {name: value for name, value in event.items() if name not in _FOREIGN_FIELDS}


def _colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
