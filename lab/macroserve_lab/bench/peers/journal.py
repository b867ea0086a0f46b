"""The journal keeps every measured point as a JSON line, so that a run that was stopped goes on."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgspec


class PointKey(NamedTuple):
    """The key of one measurement: what is the same in no two of them."""

    round: int
    deployment: str
    load: str
    rate: float


class Settings(msgspec.Struct, frozen=True, tag="settings"):
    """The settings that all points of a journal share, as their order and number may change."""

    machine: str
    commit: str
    versions: dict[str, str]
    """Versions of vLLM and of the peers' packages."""
    duration_s: float
    ttft_s: float
    tpot_s: float
    instances: int
    threads: int
    """Compute threads of each engine."""
    split_engines: bool
    """Stock engines have two processes each."""
    seed: int
    traces: dict[str, str]
    """SHA-256 of the traces that were given, by load; see ``Traces.digests``."""


class Point(msgspec.Struct, frozen=True, tag="point"):
    """A point is one load at one rate against one deployment, once."""

    round: int
    deployment: str
    load: str
    rate: float
    """Requests per second that were planned."""
    num_requests: int
    num_failed: int
    attainment: float
    attainment_by_size: dict[str, float]
    """Attainment of thirds of the requests, by names of ``SIZES``."""
    ttft_s: dict[str, float]
    """Quantiles of TTFT, ``p50``, ``p90`` and ``p99``, of requests that succeeded."""
    tpot_s: dict[str, float]
    tokens_per_s: float
    """Output tokens per second up to the end of the last request."""
    cached_share: float | None
    """Share of the prompt tokens that prefix caches had; None where the endpoint does not tell."""
    cpu_s: float
    """CPU seconds of all processes but the engines, from first request to last answer."""
    engine_cpu_s: float
    rss_mb: float
    """Memory of all processes but the engines, at the end."""
    engine_rss_mb: float
    client_cpu: float
    """Share of one core that the client used."""

    @property
    def key(self) -> PointKey:
        return PointKey(self.round, self.deployment, self.load, self.rate)


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """A deployment's usage in a round while it has nothing to do."""

    round: int
    deployment: str
    cpu_pct: float
    """Percent of one core that all processes but the engines use."""
    engine_cpu_pct: float
    rss_mb: float
    start_s: float
    """Seconds from the start of the first process until the endpoint serves."""


class JournalError(Exception):
    """The journal belongs to another measurement; the message is a sentence for the user."""


_Line = Settings | Point | Idle
_decoder = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class Journal:
    """The journal is open for appending; what it holds is in memory, too."""

    path: Path
    points: list[Point]
    idles: list[Idle]

    @classmethod
    def open(cls, path: Path, settings: Settings) -> Self:
        """Open the journal, or begin it where there is none.

        A last line that was cut off is removed. Raises JournalError where the journal has other
        settings or is no journal at all.
        """
        whole = _whole_lines(path)
        if not whole:
            path.write_bytes(_encoded(settings))
            return cls(path, [], [])
        try:
            first, *rest = (_decoder.decode(line) for line in whole.splitlines())
        except msgspec.MsgspecError as error:
            raise JournalError(f"{path} is not a journal of this benchmark: {error}") from None
        if not isinstance(first, Settings):
            raise JournalError(f"{path} is not a journal of this benchmark: it has no settings")
        if differing := _differences(first, settings):
            raise JournalError(
                f"{path} was measured with {differing}: give another --json FILE, or remove {path}"
            )
        path.write_bytes(whole)
        return cls(
            path,
            [line for line in rest if isinstance(line, Point)],
            [line for line in rest if isinstance(line, Idle)],
        )

    @property
    def keys(self) -> set[PointKey]:
        """Return the keys of the points, which may be another sweep's."""
        return {point.key for point in self.points}

    def add(self, line: Point | Idle) -> None:
        with self.path.open("ab") as file:
            file.write(_encoded(line))
        if isinstance(line, Point):
            self.points.append(line)
        else:
            self.idles.append(line)


def _whole_lines(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None
    return content[: content.rfind(b"\n") + 1]


def _encoded(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _differences(there: Settings, here: Settings) -> str:
    """Return the settings that differ as ``seed 1 (now 2)``, or an empty text."""
    fields = [
        name for name in Settings.__struct_fields__ if getattr(there, name) != getattr(here, name)
    ]
    return ", ".join(
        f"{name} {getattr(there, name)!r} (now {getattr(here, name)!r})" for name in fields
    )
