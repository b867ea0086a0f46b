"""Recorded loads: reads trace files in the forms that the field publishes.

- CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces):
  dates with a time, in UTC where they name no zone.
- JSON lines with ``timestamp``, ``input_length``, ``output_length`` (Mooncake): milliseconds where
  all timestamps of the file are whole numbers, as in that trace, and seconds otherwise.
- JSON lines with ``arrival_s``, ``prompt_tokens``, ``output_tokens``: seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from macroserve.cli.load.planned import PlannedRequest

MAX_LENGTH = 10**9
"""Tokens; a longer prompt or answer is a corrupt row."""

MAX_TIME = 10**15
"""Milliseconds or seconds since any epoch."""

T = TypeVar("T")


class _Keys(NamedTuple):
    time: str
    prompt: str
    output: str


_AZURE = _Keys("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE = _Keys("timestamp", "input_length", "output_length")
_PLAIN = _Keys("arrival_s", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Trace:
    """rows: at least one, in order of arrival, the first at 0 s. num_skipped: bad rows left out."""

    rows: tuple[PlannedRequest, ...]
    num_skipped: int = 0


def read_trace(path: Path, lenient: bool) -> Trace:
    """Reads the whole file, so that a fault shows before anything is sent.

    Raises ValueError that names file, line and fault; with ``lenient``, bad rows are skipped and
    counted instead.
    """
    lines = [(n, line) for n, line in enumerate(_text(path).split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty")
    _, first = lines[0]
    if first.lstrip().startswith("{"):
        decode, keys = _decode_json, _PLAIN if f'"{_PLAIN.time}"' in first else _MOONCAKE
    else:
        header = [name.strip() for name in first.split(",")]
        if not set(_AZURE) <= set(header):
            raise ValueError(
                f"{path} is neither JSON lines nor a CSV file with the columns {', '.join(_AZURE)}"
            )
        decode, keys = partial(_decode_csv, header), _AZURE
        lines = lines[1:]

    rows: list[tuple[float, int, int]] = []
    for number, line in lines:
        try:
            rows.append(_parse_row(decode(line), keys))
        except ValueError as fault:
            if not lenient:
                raise ValueError(f"{path}, line {number}: {fault}") from None
    if not rows:
        raise ValueError(f"{path} has no usable row")
    return Trace(_planned(rows, is_mooncake=keys is _MOONCAKE), len(lines) - len(rows))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None


def _decode_json(line: str) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a JSON object ({error})") from None


def _decode_csv(header: Sequence[str], line: str) -> Mapping[str, object]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(header):
        raise ValueError(f"{len(fields)} fields where the header has {len(header)}")
    return dict(zip(header, fields, strict=True))


def _parse_row(row: Mapping[str, object], keys: _Keys) -> tuple[float, int, int]:
    return (
        _parse_field(row, keys.time, _parse_date if keys is _AZURE else _parse_number),
        _parse_field(row, keys.prompt, _parse_length),
        _parse_field(row, keys.output, _parse_length),
    )


def _parse_field(row: Mapping[str, object], key: str, parse: Callable[[object], T]) -> T:
    if key not in row:
        raise ValueError(f"{key} is missing")
    try:
        return parse(row[key])
    except ValueError as fault:
        raise ValueError(f"{key} is {row[key]!r}, expected {fault}") from None


def _parse_date(value: object) -> float:
    try:
        date = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("a date and time") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _parse_number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_TIME:
        return value
    raise ValueError("a number")


def _parse_length(value: object) -> int:
    # Columns of a CSV file are text, JSON has numbers.
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if type(number) is not int or not 1 <= number <= MAX_LENGTH:
        raise ValueError("a whole number of at least 1")
    return number


def _planned(
    rows: Sequence[tuple[float, int, int]], is_mooncake: bool
) -> tuple[PlannedRequest, ...]:
    """The rows in order of arrival, on a clock in seconds that starts with the first."""
    in_ms = is_mooncake and all(isinstance(time, int) for time, _, _ in rows)
    seconds_per_unit = 1e-3 if in_ms else 1.0
    start = min(time for time, _, _ in rows)
    planned = (
        PlannedRequest((time - start) * seconds_per_unit, prompt, output)
        for time, prompt, output in rows
    )
    return tuple(sorted(planned, key=lambda request: request.arrival_s))
