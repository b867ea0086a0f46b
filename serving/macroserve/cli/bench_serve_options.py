"""Parsers of the options of ``bench serve``, which raise ValueError with a sentence."""

import math
import os
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from macroserve.cli.load_options import parse_duration
from macroserve.core.request import DEFAULT_CLASS, Slo
from macroserve.core.slo_class import SloClass
from macroserve.workload.class_mix import ClassMix

DEFAULT_DURATION_S = 60.0
_URL = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[^][:/?#@\s]+)(:[0-9]+)?(/[^?#\s]*)?")
"""URL of an endpoint, without user name, query and fragment."""


def choose_duration(text: str | None, may_last: bool) -> float:
    """Return the duration of the arrivals, seconds; infinite if the load itself ends."""
    if text is not None:
        return parse_duration("--duration", text)
    return math.inf if may_last else DEFAULT_DURATION_S


def parse_url(text: str) -> str:
    """Return the base URL of an endpoint, from a URL with or without ``/v1``."""
    if not _URL.fullmatch(text):
        raise ValueError(f"--url must be like http://127.0.0.1:8000, got {text!r}")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


CLASS_SYNTAX = "interactive=0.3,ttft=1s,tpot=50ms"
_CLASS = re.compile(
    r"([a-z0-9][-a-z0-9]{0,31})=([0-9.]+),ttft=([^,]+),tpot=([^,]+)(?:,tbt=([^,]+))?"
)


def parse_classes(texts: Iterable[str]) -> ClassMix:
    """Return the SLO classes of the texts, such as CLASS_SYNTAX."""
    classes: list[SloClass] = []
    for text in texts:
        if not (found := _CLASS.fullmatch(text)):
            raise ValueError(f"--slo-class must be like {CLASS_SYNTAX}, got {text!r}")
        name, share, ttft, tpot, tbt = found.groups()
        if not 0 < (probability := _number(share)) <= 1:
            raise ValueError(
                f"--slo-class {name}: the share must be above 0 and at most 1, got {share}"
            )
        if name in (DEFAULT_CLASS, *(each.name for each in classes)):
            raise ValueError(f"--slo-class {name}: the name is taken")
        slo = Slo(
            parse_duration("--slo-class", ttft),
            parse_duration("--slo-class", tpot),
            None if tbt is None else parse_duration("--slo-class", tbt),
        )
        classes.append(SloClass(name=name, slo=slo, share=probability))
    try:
        return ClassMix(tuple(classes))
    except ValueError as error:
        raise ValueError(f"--slo-class: {error}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_api_key(text: str | None) -> str | None:
    """Return the key without surrounding whitespace, or None without a key.

    Raises ValueError, which omits the key, for characters that no header can carry.
    """
    key = (text or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("--api-key contains characters that are not allowed in an HTTP header")
    return key or None


def check_outputs(json: Path | None, plot: Path | None) -> None:
    """Raise ValueError, before the run, for outputs that cannot be written after it."""
    for option, path in (("--json", json), ("--plot", plot)):
        if path is None:
            continue
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{option}: cannot write {path}")
    if plot is not None and find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'macroserve[bench]'")
