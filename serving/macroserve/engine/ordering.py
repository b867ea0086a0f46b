"""The order of waiting requests, by ``spec.scheduling.ordering``."""

import math
from dataclasses import replace
from importlib import import_module
from typing import TypeGuard

from macroserve.api.logs import get_logger
from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.strategies import strategy
from macroserve.core.strategy import Ordering, PromptKey, Strategy, WaitingPrompt

AUTO = "Auto"
EXAMPLE = WaitingPrompt(
    num_tokens=100,
    arrival_s=10.0,
    deadline_s=15.0,
    prefill_s=0.1,
    predicted_tokens=50,
    slo_class=DEFAULT_CLASS,
)
"""Waiting request for checking a user's function before the first real one."""

log = get_logger(__name__)


def ordered_strategy(name: str, ordering: str) -> Strategy:
    """Return the named strategy with an ordering of the manifest. Raises ValueError with a sentence
    for a function that cannot be used."""
    found = strategy(name)
    if ordering == AUTO:
        return found
    own = _load(ordering) if ":" in ordering else Ordering(ordering.lower())
    return replace(found, ordering=own)


def _load(path: str) -> PromptKey:
    module, _, name = path.partition(":")
    begin = f"spec.scheduling.ordering {path}"
    try:
        function: PromptKey = getattr(import_module(module), name)
    except Exception as error:
        raise ValueError(f"{begin} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"{begin} is no function")
    try:
        key: object = function(EXAMPLE)
    except Exception as error:
        raise ValueError(f"{begin} fails: {type(error).__name__}: {error}") from error
    if not _is_key(key):
        raise ValueError(f"{begin} returns {key!r}, must return a finite number")
    return _Guarded(path, function)


class _Guarded:
    """A user's function, which falls back to deadlines: its failure must not end the engine."""

    def __init__(self, path: str, function: PromptKey) -> None:
        self._path = path
        self._function = function
        self._has_failed = False

    def __call__(self, prompt: WaitingPrompt) -> float:
        try:
            key = self._function(prompt)
        except Exception as error:
            return self._failed(prompt, f"{type(error).__name__}: {error}")
        if not _is_key(key):
            return self._failed(prompt, f"it returned {key!r}")
        return float(key)

    def _failed(self, prompt: WaitingPrompt, reason: str) -> float:
        if not self._has_failed:
            self._has_failed = True
            log.error("ordering failed, using deadlines", ordering=self._path, reason=reason)
        return prompt.deadline_s


def _is_key(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
