"""Recorded loads, read from trace files in published formats.

- CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces):
  dates with a time, in UTC if they name no zone.
- JSON lines with ``timestamp``, ``input_length``, ``output_length`` (Mooncake): milliseconds, as in
  that trace, unless the caller sets another unit. Optional ``hash_ids`` name the blocks of 512
  tokens that prompts share; a row with more ids than blocks is bad.
- JSON lines with ``arrival_s``, ``prompt_tokens``, ``output_tokens``: seconds.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from io import StringIO
from math import ceil
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn, TypeVar

import msgspec

from macroserve.workload.arrivals import BLOCK_TOKENS, Arrival

MAX_LENGTH = 10**9
"""Maximum tokens of a prompt or a response; a row with more is corrupt."""

MAX_TIME = 10**15
"""Maximum timestamp, in milliseconds or seconds since any epoch."""

MIN_MEAN_GAP_MS = 10.0
"""Minimum plausible mean gap between different timestamps. Published traces have hundreds of
milliseconds; a file with less is probably in seconds, so the user must specify the unit."""

T = TypeVar("T")


class TimeUnit(StrEnum):
    """Unit of the field ``timestamp``."""

    SECONDS = "s"
    MILLISECONDS = "ms"


class _Keys(NamedTuple):
    time: str
    prompt: str
    output: str


_AZURE = _Keys("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE = _Keys("timestamp", "input_length", "output_length")
_PLAIN = _Keys("arrival_s", "prompt_tokens", "output_tokens")
_BLOCK_IDS = "hash_ids"


class _Row(NamedTuple):
    time: float
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...]


Row = tuple[int, Callable[[], Mapping[str, object]]]
"""Number of a line and its decoder, which raises ValueError for a bad row."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded load."""

    rows: tuple[Arrival, ...]
    """Arrivals in order of time, at least one, from 0 s on."""
    num_skipped: int = 0
    """Bad rows left out."""


def read_trace(
    path: Path, lenient: bool, unit: TimeUnit | None = None, *, uses_times: bool = True
) -> Trace:
    """Read the whole file, so that faults are found before anything is sent.

    lenient: whether to skip and count bad rows.
    unit: unit of ``timestamp``; None: milliseconds, if plausible.
    uses_times: whether the caller uses the arrival times, which must then be plausible.

    Raises ValueError that names file, line and fault.
    """
    text = _text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    if not first:
        raise ValueError(f"{path} is empty")
    if first.lstrip().startswith("{"):
        read, keys = _json_rows, _PLAIN if f'"{_PLAIN.time}"' in first else _MOONCAKE
    else:
        read, keys = _csv_rows, _AZURE
    if unit and keys is not _MOONCAKE:
        raise ValueError(f"--trace-unit is for {_MOONCAKE.time}; {path} has {keys.time}")

    rows: list[_Row] = []
    num_rows = 0
    for number, decode in read(path, text):
        num_rows += 1
        try:
            rows.append(_parse_row(decode(), keys))
        except ValueError as fault:
            if not lenient:
                raise ValueError(f"{path}, line {number}: {fault}") from None
    if not rows:
        raise ValueError(f"{path} has no usable row")
    if keys is _MOONCAKE:
        if unit is None and uses_times:
            _check_density(path, rows)
        seconds_per_unit = 1.0 if unit is TimeUnit.SECONDS else 1e-3
    else:
        seconds_per_unit = 1.0
    return Trace(_planned(rows, seconds_per_unit), num_rows - len(rows))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file") from None


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, partial(_decode_json, line)


def _decode_json(line: str) -> Mapping[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not a JSON object ({error})") from None


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    """Yield the rows after the header; raise ValueError for a header without the columns."""
    reader = csv.reader(StringIO(text, newline=""), skipinitialspace=True, strict=True)
    header: list[str] | None = None
    while True:
        try:
            fields = [field.strip() for field in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            if header is None:
                raise ValueError(f"{path} is not a CSV file: {error}") from None
            yield reader.line_num, partial(_raise, f"not a CSV row ({error})")
            continue
        if not any(fields):
            continue
        if header is None:
            header = _checked(path, fields)
        else:
            yield reader.line_num, partial(_named, header, fields)


def _checked(path: Path, header: list[str]) -> list[str]:
    if set(_AZURE) <= set(header):
        if twice := [name for name, count in Counter(header).items() if name and count > 1]:
            raise ValueError(f"{path} has the column {twice[0]} more than once")
        return header
    other = next(
        (mark for mark in (";", "\t") if all(k in mark.join(header) for k in _AZURE)), None
    )
    if other:
        raise ValueError(f"{path} separates its columns by {other!r}; commas are read")
    raise ValueError(
        f"{path} is neither JSON lines nor a CSV file with the columns {', '.join(_AZURE)}"
    )


def _named(header: Sequence[str], fields: Sequence[str]) -> Mapping[str, object]:
    if len(fields) != len(header):
        raise ValueError(f"{len(fields)} fields where the header has {len(header)}")
    return dict(zip(header, fields, strict=True))


def _raise(fault: str) -> NoReturn:
    raise ValueError(fault)


def _parse_row(row: Mapping[str, object], keys: _Keys) -> _Row:
    shares = keys is _MOONCAKE and _BLOCK_IDS in row
    parsed = _Row(
        _parse_field(row, keys.time, _parse_date if keys is _AZURE else _parse_number),
        _parse_field(row, keys.prompt, _parse_length),
        _parse_field(row, keys.output, _parse_length),
        _parse_field(row, _BLOCK_IDS, _parse_ids) if shares else (),
    )
    # Ids of smaller blocks would stand for more shared tokens than the prompts have.
    num_blocks = ceil(parsed.num_prompt_tokens / BLOCK_TOKENS)
    if len(parsed.block_ids) > num_blocks:
        raise ValueError(
            f"{_BLOCK_IDS} has {len(parsed.block_ids)} ids, and {keys.prompt} has {num_blocks} "
            f"blocks of {BLOCK_TOKENS} tokens"
        )
    return parsed


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
    """Return a length from a CSV text or a JSON number; 5.0 is read as 5."""
    try:
        number = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or not (1 <= number <= MAX_LENGTH and number.is_integer()):
        raise ValueError("a whole number of at least 1")
    return int(number)


def _parse_ids(value: object) -> tuple[int, ...]:
    try:
        return msgspec.convert(value, tuple[Annotated[int, msgspec.Meta(ge=0)], ...])
    except msgspec.ValidationError:
        raise ValueError("a list of whole numbers of at least 0") from None


def _check_density(path: Path, rows: Sequence[_Row]) -> None:
    """Raise ValueError for a file that is implausibly dense in milliseconds."""
    times = {row.time for row in rows}
    if len(times) > 1 and (max(times) - min(times)) / (len(times) - 1) < MIN_MEAN_GAP_MS:
        raise ValueError(
            f"{path} does not specify whether {_MOONCAKE.time} is in seconds or milliseconds: "
            "give --trace-unit s or --trace-unit ms"
        )


def _planned(rows: Sequence[_Row], seconds_per_unit: float) -> tuple[Arrival, ...]:
    """Return the rows in order of arrival, in seconds from the first."""
    start = min(row.time for row in rows)
    planned = (
        Arrival((time - start) * seconds_per_unit, prompt, output, block_ids=block_ids)
        for time, prompt, output, block_ids in rows
    )
    return tuple(sorted(planned, key=lambda arrival: arrival.at_s))
