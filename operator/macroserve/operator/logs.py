"""Configuration of the operator's logs, and loggers with the MacroInstance as fields."""

import logging
import sys

import structlog

from macroserve.api.logs import formatter, get_logger
from macroserve.operator.k8s.names import Key

_QUIET = ("aiohttp.access", "kopf.activities.probe", "kopf.objects")
"""Loggers with a line for each call, probe or event."""


def configure() -> None:
    """Format the lines of kopf's handlers like those of the other components."""
    lines = formatter(readable=sys.stderr.isatty())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(lines)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def about(key: Key, name: str) -> structlog.stdlib.BoundLogger:
    return get_logger(name).bind(namespace=key.namespace, macroinstance=key.name)
