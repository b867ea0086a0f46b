"""Errors of every kind as one sentence."""

import pytest
from pydantic import BaseModel, ValidationError, field_validator
from ray.exceptions import RayTaskError

from macroserve.serving.causes import MAX_CHARS, cause_of, one_line


class Config(BaseModel):
    length: int

    @field_validator("length")
    @classmethod
    def _short(cls, value: int) -> int:
        if value > 4096:
            raise ValueError("length is greater than\n the model's 4096")
        return value


def validation_error(length: object) -> ValidationError:
    try:
        Config.model_validate({"length": length})
    except ValidationError as error:
        return error
    raise AssertionError


TOKENIZER = ValueError("Couldn't instantiate the tokenizer from one of: \n(1) a file\n(2) another.")
VLLM_TEXT = (
    "ValidationError: 1 validation error for ModelConfig\n  Value error, too long [for it] "
    "[type=value_error, input_value=ArgsKwargs((), {'a': [1]}), input_type=ArgsKwargs]\n"
    "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
)
TRACE = (
    "\x1b[36mray::A.__init__()\x1b[39m (pid=1)\nTraceback (most recent call last):\n"
    '  File "a.py", line 1, in f\n    raise RuntimeError("x")\nRuntimeError: enlarge the cache\nnow'
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("no such model\nat all"), "no such model at all"),
        (TOKENIZER, "Couldn't instantiate the tokenizer from one of: (1) a file (2) another."),
        (validation_error(9999), "length: length is greater than the model's 4096"),
        (RuntimeError(VLLM_TEXT), "too long [for it]"),
        (RuntimeError(TRACE), "enlarge the cache now"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (ExceptionGroup("g", [ExceptionGroup("h", [ValueError("inside it")])]), "inside it"),
        (KeyError("name"), "KeyError: 'name'"),
        (AssertionError(), "AssertionError"),
        (RayTaskError("f", "trace", RuntimeError("red \x1b[31mand\x1b[0m bold")), "red and bold"),
        (None, "the cause is not known"),
    ],
)
def test_cause_of_each_kind_of_error_is_one_sentence(
    error: BaseException | None, sentence: str
) -> None:
    assert cause_of(error) == sentence


def test_cause_with_a_long_message_is_cut() -> None:
    assert len(one_line("word " * MAX_CHARS)) == MAX_CHARS
