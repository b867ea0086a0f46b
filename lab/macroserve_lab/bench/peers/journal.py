"""The journal of measured points, a JSON line each, by which a stopped run continues."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from macroserve.bench.serve.report import MAX_QUEUE_GROWTH
from macroserve.rehearsal.step_log import MAX_LATE_SHARE
from macroserve_lab.bench.peers.rehearsed import MIN_IDLE


class PointKey(NamedTuple):
    """The unique key of a measurement."""

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
    """Whether stock engines have two processes each."""
    seed: int
    device: str | None
    """Device that the engines rehearse, if any."""
    model: str | None
    tensor_parallel: int
    scale: float
    """Factor on all times of a rehearsal."""
    traces: dict[str, str]
    """SHA-256 of the given traces by load; see ``Traces.digests``."""


class Point(msgspec.Struct, frozen=True, tag="point"):
    """A measurement of one load at one rate against one deployment."""

    round: int
    deployment: str
    load: str
    rate: float
    """Planned requests per second."""
    num_requests: int
    num_failed: int
    num_refused: int
    """Failed requests that the endpoint refused because it had too many (429)."""
    attainment: float
    attainment_by_size: dict[str, float]
    """Attainment of thirds of the requests, by names of ``SIZES``."""
    ttft_s: dict[str, float]
    """Quantiles of TTFT, ``p50``, ``p90``, ``p99`` and ``max``, of requests that succeeded."""
    tpot_s: dict[str, float]
    queue_growth: float
    """Growth of the queue per arriving request; see ``bench.serve.metrics.queue_growth``."""
    tokens_per_s: float
    """Output tokens per second up to the end of the last request."""
    cached_share: float | None
    """Share of cached prompt tokens; None if the endpoint does not report it."""
    cpu_s: float
    """CPU seconds of all processes except engines, from first request to last answer."""
    engine_cpu_s: float
    rss_mb: float
    """Memory of all processes except engines, at the end."""
    engine_rss_mb: float
    client_cpu: float
    """Share of one core that the client used."""
    idle: float
    """Share of the machine's CPU time that was idle."""
    late_p99: float | None
    """P99 of the lateness of rehearsed steps, as a share of a step; None without a rehearsal."""

    @property
    def counts(self) -> bool:
        """Return whether the machine kept the pace of the rehearsed devices."""
        if self.late_p99 is None:
            return True
        return self.late_p99 <= MAX_LATE_SHARE and self.idle >= MIN_IDLE

    @property
    def held(self) -> float:
        """Return the attainment that a longer run would have: 0 if the queue grows."""
        return self.attainment if self.queue_growth <= MAX_QUEUE_GROWTH else 0.0

    @property
    def key(self) -> PointKey:
        return PointKey(self.round, self.deployment, self.load, self.rate)


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """A deployment's usage in a round without requests."""

    round: int
    deployment: str
    cpu_pct: float
    """Usage of all processes except engines, percent of one core."""
    engine_cpu_pct: float
    rss_mb: float
    start_s: float
    """Seconds from the start of the first process until the endpoint serves."""


class JournalError(Exception):
    """A journal of another measurement; the message is for users."""


_Line = Settings | Point | Idle
_decoder = msgspec.json.Decoder(_Line)


@dataclass(slots=True)
class Journal:
    """A journal open for appending, with its content in memory."""

    path: Path
    points: list[Point]
    idles: list[Idle]

    @classmethod
    def open(cls, path: Path, settings: Settings) -> Self:
        """Open or create the journal, and remove an incomplete last line. Raises JournalError if it
        has other settings or is no journal."""
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
        """Return the keys of the points that count, which may be another sweep's."""
        return {point.key for point in self.points if point.counts}

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
