"""Causes of failures in one sentence, without tracebacks, colors and line breaks."""

import re

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MAX_CHARS = 1000
"""Kubernetes cuts a termination message at 4096 bytes."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_RAISED = re.compile(r"^(?:[\w]+\.)*(\w*(?:Error|Exception|Exit|Interrupt)): ?", re.MULTILINE)
"""Line of a printed traceback that names the exception."""
_VALIDATION = re.compile(r"\d+ validation errors? for \S+\s+(.*)", re.DOTALL)
_VALIDATION_NOISE = re.compile(
    r"\s*\[type=\w+, input_value=.*?, input_type=\w+\]|\s*For further information visit \S+",
    re.DOTALL,
)
_PLAIN = frozenset({"Exception", "OSError", "RuntimeError", "ValueError", "ValidationError"})
"""Names that add nothing to the message."""


def cause_of(error: BaseException | None) -> str:
    """Return the cause as a sentence, unwrapping Ray's errors, exception groups and validation
    errors."""
    match error:
        case None:
            return "the cause is not known"
        case BaseExceptionGroup():
            return cause_of(error.exceptions[0])
        # Ray's errors wrap one from another process; Ray is not imported for emulated instances.
        case _ if isinstance(cause := getattr(error, "cause", None), BaseException):
            return cause_of(cause)
        case ValidationError():
            text = "; ".join(
                ": ".join(part for part in (_location(found["loc"]), _message(found)) if part)
                for found in error.errors(include_url=False, include_input=False)
            )
        case OSError() if error.strerror:
            text = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
        case _:
            text = str(error)
    name = type(error).__name__
    sentence = one_line(text)
    if not sentence:
        return name
    # Ray's own errors contain a whole traceback, of which one_line keeps the last line.
    plain = name in _PLAIN or name.startswith("Ray") or " " in sentence
    return sentence if plain else f"{name}: {sentence}"


def one_line(text: str) -> str:
    """Return ``text`` as one line; for a traceback, its last line."""
    text = _ESCAPE.sub("", text)
    if "Traceback (most recent call last)" in text or "\n  File " in text:
        for raised in reversed(list(_RAISED.finditer(text))):
            if text[raised.end() :].strip():
                keeps_name = raised[1] not in _PLAIN
                text = text[raised.start(1) if keeps_name else raised.end() :]
                break
    if found := _VALIDATION.search(text):
        text = _VALIDATION_NOISE.sub("", found[1]).replace("Value error, ", "")
    line = " ".join(text.split()).removeprefix("Value error, ")
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 3]}..."


def _message(found: ErrorDetails) -> str:
    return found["msg"].removeprefix("Value error, ")


def _location(loc: tuple[int | str, ...]) -> str:
    return ".".join(map(str, loc))
