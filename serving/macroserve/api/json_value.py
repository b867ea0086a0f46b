"""JSON values in a manifest that are passed to vLLM unchanged, and their limits."""

import math

from macroserve.api.validation_errors import must_be

MAX_DEPTH = 8
MAX_VALUES = 1000
MAX_TEXT_CHARS = 65536
"""Most characters of all strings together. A whole manifest has at most 1.5 MB on Kubernetes."""

ALLOWED = "a string, a finite number, true, false, or a list or mapping of such values"


def json_value(value: object) -> object:
    """Return the value. Raises a ``must_be`` error for values that are too large or not JSON."""
    num_values = num_chars = 0
    todo: list[tuple[object, int]] = [(value, 1)]
    while todo:
        item, depth = todo.pop()
        num_values += 1
        inner: list[object] = []
        match item:
            case str():
                num_chars += len(item)
            case bool() | int():
                pass
            case float() if math.isfinite(item):
                pass
            case None if depth > 1:
                pass
            case list():
                inner = item
            case dict() if all(isinstance(key, str) for key in item):
                inner = [*item, *item.values()]
            case _:
                raise must_be(ALLOWED)
        if depth > MAX_DEPTH or num_values + len(inner) > MAX_VALUES:
            raise must_be(f"at most {MAX_VALUES} values, at most {MAX_DEPTH} deep")
        todo += [(each, depth + 1) for each in inner]
    if num_chars > MAX_TEXT_CHARS:
        raise must_be(f"strings of at most {MAX_TEXT_CHARS} characters together")
    return value
