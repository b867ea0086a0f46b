"""The loads of the comparison. Equal seeds give equal requests for all deployments."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol

from macroserve.bench.serve.client import LoadClient
from macroserve.bench.serve.payload import Endpoint, PayloadMaker
from macroserve.bench.serve.record import RequestRecord
from macroserve.workload.arrivals import Arrival
from macroserve.workload.client_load import WINDOW_S, ClientLoad
from macroserve.workload.datasets import AZURE_CODE, AZURE_CONVERSATIONS, Workload
from macroserve.workload.load import Load as Source
from macroserve.workload.load import LoadLimits, plan
from macroserve.workload.servegen import read_servegen
from macroserve.workload.trace import read_trace
from macroserve_lab.bench.peers.chats import CHATS, LONG_CHATS, WHOLE_CHATS, WHOLE_LONG_CHATS
from macroserve_lab.bench.peers.prefixes import shared_prefixes
from macroserve_lab.bench.peers.rows import RowLoad
from macroserve_lab.bench.peers.send import send
from macroserve_lab.bench.peers.traces import Traces

VOCAB_SIZE = 2000
"""Limit on token ids, within the vocabulary of the tiny model."""
MAX_PROMPT_TOKENS = 1800
MAX_OUTPUT_TOKENS = 200
"""Caps that keep every request within 2,048 tokens, the model's length."""
SERVICE_SCALE = 0.15
"""Scale of the lengths of Azure's conversations and of ServeGen's clients, for a small model on a
CPU."""
CODE_SCALE = 0.24
"""Scale of the lengths of Azure's code completions: the largest at which no prompt is capped, as
the longest has 7,437 tokens."""
PREFIX_SCALE = 1 / 16
"""Scale of Mooncake's lengths: its blocks of 512 tokens become the engines' blocks of 32."""


WHOLE = LoadLimits(max_prompt_tokens=14000, max_output_tokens=2000)
"""Caps that keep every request within the length of a rehearsed model."""


class Load(Protocol):
    """A load that can be sent at a rate for some time."""

    @property
    def name(self) -> str:
        """Return the name, as in the keys of figures."""
        ...

    @property
    def rates(self) -> Sequence[float]:
        """Return the rates to sweep by default, requests per second: around the knee of three tiny
        engines on two cores."""
        ...

    async def run(
        self, client: LoadClient, model: str, rate: float, duration_s: float, seed: int
    ) -> list[RequestRecord]:
        """Send requests that arrive within ``duration_s``; return when the last has ended."""
        ...


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Independent requests from a source, with limited lengths."""

    name: str
    rates: Sequence[float]
    source: Source
    """Source of requests; its rate is the sweep's."""
    limits: LoadLimits

    def plan(self, rate: float, duration_s: float, seed: int) -> Sequence[Arrival]:
        return plan(self.source.at(rate), replace(self.limits, duration_s=duration_s), seed)

    async def run(
        self, client: LoadClient, model: str, rate: float, duration_s: float, seed: int
    ) -> list[RequestRecord]:
        payloads = PayloadMaker(model, Endpoint.COMPLETIONS, VOCAB_SIZE, (seed,))
        return await send(client, self.plan(rate, duration_s, seed), payloads)


def loads(traces: Traces, scale: float | None = None) -> dict[str, Load]:
    """Return every load by its name, synthesized without a trace, except ``servegen``, which needs
    its clients. Rehearsed engines get the lengths of the sources, and longer chats.

    scale: factor on the times of engines that rehearse; None for those that do not.

    Raises ValueError for a bad trace, for a prefix trace without ``hash_ids``, and for clients that
    send nothing when the load begins.
    """
    conv_rows = _azure(AZURE_CONVERSATIONS, traces.azure_conv)
    code_rows = _azure(AZURE_CODE, traces.azure_code)
    prefix_rows = _rows(traces.prefixes) if traces.prefixes else shared_prefixes()
    if not any(row.block_ids for row in prefix_rows):
        raise ValueError(f"{traces.prefixes} has no hash_ids, so that no prompts share a prefix")
    conv, code, prefixes = map(_poisson, (conv_rows, code_rows, prefix_rows))

    def limits(length_scale: float) -> LoadLimits:
        return WHOLE if scale else _limits(length_scale)

    chats = (CHATS, LONG_CHATS)
    if scale:
        chats = (WHOLE_CHATS.stretched(scale), WHOLE_LONG_CHATS.stretched(scale))

    found: list[Load] = [
        RequestLoad("azure_conv", (6.0, 8.0, 9.5, 11.0, 13.0), conv, limits(SERVICE_SCALE)),
        RequestLoad("azure_code", (1.0, 2.0, 3.0, 4.0), code, limits(CODE_SCALE)),
        *chats,
        RequestLoad("prefixes", (4.0, 5.0, 6.0, 7.0, 8.5), prefixes, limits(PREFIX_SCALE)),
    ]
    if traces.servegen:
        clients = _clients(traces.servegen, traces.servegen_start_s)
        found.append(
            RequestLoad("servegen", (6.0, 8.0, 10.0, 12.0), clients, limits(SERVICE_SCALE))
        )
    return {load.name: load for load in found}


def _limits(length_scale: float) -> LoadLimits:
    return LoadLimits(
        length_scale=length_scale,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        max_output_tokens=MAX_OUTPUT_TOKENS,
    )


def _poisson(rows: Sequence[Arrival]) -> RowLoad:
    return RowLoad(rate=1.0, cv=1.0, rows=rows)


def _azure(workload: Workload, trace: Path | None) -> Sequence[Arrival]:
    if trace:
        return _rows(trace)
    return [Arrival(0.0, *lengths) for lengths in workload.lengths(Random(0))]


def _rows(path: Path) -> Sequence[Arrival]:
    return read_trace(path, lenient=False, uses_times=False).rows


def _clients(folder: Path, start_s: float) -> ClientLoad:
    load = ClientLoad(1.0, read_servegen(folder), start_s)
    first = next(load.arrivals(seed=0), None)
    if first is None or first.at_s > WINDOW_S:
        raise ValueError(f"{folder}: no client sends requests soon after {start_s:g} s")
    return load
