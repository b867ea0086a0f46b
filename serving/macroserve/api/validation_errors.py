"""Validation errors as sentences: the field, the given value, and the valid values.

A field's description ends the sentence "... must be ..."; a model's sentence lists its fields.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

_RULE = "rule"


def must_be(allowed: str) -> PydanticCustomError:
    """Return an error with a field's valid values, for those that depend on other fields."""
    return PydanticCustomError(_RULE, "{allowed}", {"allowed": allowed})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the known name closest to ``name``, or ""."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def sentences(error: ValidationError, root: type[BaseModel]) -> tuple[str, ...]:
    """Return one sentence per problem: the field of ``root``, the given value, the valid values."""
    return tuple(
        _sentence(details, root)
        for details in error.errors()
        # The default depends on a field that has a sentence already.
        if details["type"] != "default_factory_not_called"
    )


def _sentence(error: ErrorDetails, root: type[BaseModel]) -> str:
    is_key = error["loc"][-1:] == ("[key]",)
    loc = error["loc"][:-2] if is_key else error["loc"]
    path = ".".join(map(_shown_key, loc)) or "the manifest"
    model, field = _schema_at(loc, root)
    known = ", ".join(str(f.alias) for f in model.model_fields.values())
    given = shown(error["input"])
    if field is None:
        parent = ".".join(map(_shown_key, loc[:-1])) or "the manifest"
        return f"{path} is {given}, but {parent} has only the fields {known}."
    if error["type"] == _RULE:
        allowed = error["msg"]
    else:
        allowed = field.description or f"a mapping with {known}"
    if is_key:
        return f"{path} has the key {given}, which must be {allowed}."
    if error["type"] == "missing":
        return f"{path} is missing, must be {allowed}."
    return f"{path} is {given}, must be {allowed}."


def _schema_at(
    loc: tuple[int | str, ...], root: type[BaseModel]
) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the field at ``loc`` (None if unknown) and the innermost model on the way to it."""
    model, field = root, FieldInfo()
    for key in loc:
        if isinstance(key, int):  # items have the fields of their list's model
            continue
        field = next((f for f in model.model_fields.values() if f.alias == key), None)
        kinds = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not inner:
            break
        model = inner[0]
    return model, field


def _shown_key(key: int | str) -> str:
    return str(key) if re.fullmatch(r"[\w/-]{1,63}", str(key)) else shown(key)


def shown(value: object) -> str:
    """Return the value as in YAML, short and on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case int() if abs(value) >= 10**18:
            return "an integer of more than 18 digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
