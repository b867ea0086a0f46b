"""The operator logs its own events, each with the MacroInstance that it is about.

kopf prints them, as JSON with ``--log-format=json``.
"""

import logging

from macroserve.operator.k8s.names import Key

_QUIET = ("aiohttp.access", "kopf.activities.probe", "kopf.objects")
"""They tell of every call, every probe and every event."""


def configure() -> None:
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def about(key: Key, name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of that name for events about one MacroInstance."""
    extra = {"namespace": key.namespace, "macroinstance": key.name}
    return logging.LoggerAdapter(logging.getLogger(name), extra)
