"""The check of a request's body, and the choice of its latency targets and session name."""

from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from macroserve.api.limit_check import excess, excess_of_bytes
from macroserve.api.limits import RequestLimits
from macroserve.core.slo_class import SloClass
from macroserve.engine.tokens import RefusedError
from macroserve.serving.ingress.gate import KEY_CLASS
from macroserve.serving.ingress.request_targets import RequestTargets
from macroserve.serving.ingress.session import SESSION_HEADER, other_session_name

CHECKED_PREFIXES = ("/v1", "/tokenize", "/detokenize", "/generative_scoring")


class Checked(NamedTuple):
    """A request that has passed the check."""

    scope: Scope
    body: bytes
    slo_class: SloClass | None
    """None on a path that is not checked."""


class RequestCheck:
    """A check of whole bodies. What it returns has been encoded again, so that two decoders cannot
    interpret one text differently."""

    def __init__(self, limits: RequestLimits, targets: RequestTargets) -> None:
        self._limits = limits
        self._targets = targets

    def __call__(self, scope: Scope, body: bytes) -> Checked:
        """Return the request for the application. Raises RefusedError for a body that is no JSON
        object or exceeds a limit (400), and for wrong targets (400 or 403)."""
        if not scope["path"].startswith(CHECKED_PREFIXES):
            return Checked(scope, body, None)
        headers, model = Headers(scope=scope), None
        if body:
            decoded = _decoded(body, self._limits)
            model, body = decoded.get("model"), msgspec.json.encode(decoded)
            if session := other_session_name(headers, decoded):
                scope = _with_header(scope, SESSION_HEADER.encode(), session.encode())
        chosen = self._targets.choose(headers, scope.get(KEY_CLASS), model)
        return Checked(scope, body, chosen)


def _with_header(scope: Scope, name: bytes, value: bytes) -> Scope:
    others = [header for header in scope["headers"] if header[0] != name]
    return {**scope, "headers": [*others, (name, value)]}


def _decoded(body: bytes, limits: RequestLimits) -> dict[str, Any]:
    """Return the decoded body. Raises RefusedError with the problem."""
    if problem := excess_of_bytes(body, limits):
        raise _wrong(problem)
    try:
        decoded = msgspec.json.decode(body)
    except RecursionError:
        raise _wrong(f"the body is nested too deeply; at most {limits.depth} levels") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise _wrong(f"the body is not valid JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise _wrong("the body is not a JSON object")
    if problem := excess(decoded, limits):
        raise _wrong(problem)
    return decoded


def _wrong(problem: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, problem)
