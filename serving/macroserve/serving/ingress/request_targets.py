"""The SLO class and latency targets of a request, from its API key, headers and model."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from http import HTTPStatus

from starlette.datastructures import Headers

from macroserve.core.slo_class import SloClass
from macroserve.engine.tokens import RefusedError

CLASS_HEADER = "x-slo-class"
TTFT_HEADER = "x-slo-ttft-ms"
TPOT_HEADER = "x-slo-tpot-ms"

MAX_TARGET_MS = 3_600_000.0
"""Largest target that a request may set, milliseconds."""

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")

_current: ContextVar[SloClass | None] = ContextVar("slo_class", default=None)


class RequestTargets:
    """The SLO classes of a deployment.

    default: the class of requests without another.
    takes_numbers: whether requests may set targets.
    """

    def __init__(
        self, default: SloClass, classes: Iterable[SloClass], *, takes_numbers: bool
    ) -> None:
        self._default = default
        self._by_name = {each.name: each for each in (default, *classes)}
        self._by_model = {name: each for each in self._by_name.values() for name in each.models}
        self._takes_numbers = takes_numbers

    def choose(self, headers: Headers, key_class: str | None, model: object) -> SloClass:
        """Return the class of a request, by its API key's class if it has one, else its header,
        else its model, with the targets that it sets.

        key_class: class of its API key; None if the key has none.
        model: name of the model in its body.

        Raises RefusedError for a class that is unknown (400) or not the key's (403), and for
        targets that are no numbers or not allowed (400).
        """
        named = self._named(headers)
        if key_class is not None:
            chosen = self._by_name[key_class]
            if named not in (None, chosen):
                raise RefusedError(
                    HTTPStatus.FORBIDDEN,
                    f"the requests of this API key have the SLO class {key_class}; omit "
                    f"{CLASS_HEADER}",
                )
        elif named is not None:
            chosen = named
        else:
            by_model = self._by_model.get(model) if isinstance(model, str) else None
            chosen = by_model or self._default
        ttft_s, tpot_s = self._seconds(headers, TTFT_HEADER), self._seconds(headers, TPOT_HEADER)
        if ttft_s is None and tpot_s is None:
            return chosen
        slo = chosen.slo
        slo = replace(slo, ttft_s=ttft_s or slo.ttft_s, tpot_s=tpot_s or slo.tpot_s)
        return replace(chosen, slo=slo)

    def _named(self, headers: Headers) -> SloClass | None:
        name = _value(headers, CLASS_HEADER)
        if name is None:
            return None
        if name not in self._by_name:
            known = ", ".join(self._by_name)
            raise RefusedError(
                HTTPStatus.BAD_REQUEST, f"{CLASS_HEADER} is not an SLO class; known are: {known}"
            )
        return self._by_name[name]

    def _seconds(self, headers: Headers, name: str) -> float | None:
        text = _value(headers, name)
        if text is None:
            return None
        if not self._takes_numbers:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"{name} is not allowed: spec.slo.allowRequestTargets is false",
            )
        milliseconds = float(text) if _NUMBER.fullmatch(text) else 0.0
        if not 0 < milliseconds <= MAX_TARGET_MS:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"{name} must be a number of milliseconds above 0 and up to {MAX_TARGET_MS:.0f}",
            )
        return milliseconds / 1e3


@contextmanager
def in_class(chosen: SloClass) -> Iterator[None]:
    """Set the class that ``current_class`` returns in this block, and in tasks started in it."""
    token = _current.set(chosen)
    try:
        yield
    finally:
        _current.reset(token)


def current_class(default: SloClass) -> SloClass:
    """Return the class of this task's request, or ``default`` outside of ``in_class``."""
    return _current.get() or default


def _value(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} is given {len(values)} times")
    return values[0].strip() if values else None
