"""From words on the command line to configuration: one sentence for whatever is wrong."""

import math
import os
import re
from importlib.util import find_spec
from pathlib import Path

from macroserve.cli.load_options import parse_duration

DEFAULT_DURATION_S = 60.0
_URL = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[^][:/?#@\s]+)(:[0-9]+)?(/[^?#\s]*)?")
"""Without user names, queries and fragments, which have no meaning here."""


def choose_duration(text: str | None, may_last: bool) -> float:
    """How long to send, seconds; without end only where something else ends the load."""
    if text is not None:
        return parse_duration("--duration", text)
    return math.inf if may_last else DEFAULT_DURATION_S


def parse_url(text: str) -> str:
    """The base of an endpoint, from an address with or without its ``/v1``."""
    if not _URL.fullmatch(text):
        raise ValueError(f"--url must be like http://127.0.0.1:8000, got {text!r}")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def parse_api_key(text: str | None) -> str | None:
    """Without the line end that keys read from files bring along. The key stays out of errors."""
    key = (text or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("--api-key holds characters that no HTTP header can carry")
    return key or None


def check_outputs(json: Path | None, plot: Path | None) -> None:
    """Raises ValueError now for what would fail after the run."""
    for option, path in (("--json", json), ("--plot", plot)):
        if path is None:
            continue
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{option}: cannot write {path}")
    if plot is not None and find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'macroserve[bench]'")
