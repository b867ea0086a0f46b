"""The loads of the comparison. Equal seeds give equal requests, whatever deployment answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from macroserve.bench.peers.chats import ChatLoad
from macroserve.bench.peers.prefixes import shared_prefixes
from macroserve.bench.peers.send import send
from macroserve.bench.serve.client import LoadClient
from macroserve.bench.serve.payload import Endpoint, PayloadMaker
from macroserve.bench.serve.record import RequestRecord
from macroserve.workload.arrivals import Arrival, gamma_gaps
from macroserve.workload.datasets import AZURE_CONVERSATIONS
from macroserve.workload.load import LoadLimits
from macroserve.workload.trace import read_trace

VOCAB_SIZE = 2000
"""Token ids below this are in the vocabulary of the tiny model."""
MAX_PROMPT_TOKENS = 1800
MAX_OUTPUT_TOKENS = 200
"""Caps that keep every request within 2,048 tokens, the model's length."""
AZURE_SCALE = 0.15
"""Scale of Azure's lengths, which a small model on a CPU takes for those of a large one."""
PREFIX_SCALE = 1 / 16
"""Scale of Mooncake's lengths: its blocks of 512 tokens become the engines' blocks of 32."""


class Load(Protocol):
    """A load is sent at a rate for some time, and gives the records of its requests."""

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
    """Independent requests arrive as a Poisson process, with the lengths and the shared blocks of a
    data set's rows, in its order from a random row on."""

    name: str
    rates: Sequence[float]
    rows: Sequence[Arrival]
    limits: LoadLimits

    def plan(self, rate: float, duration_s: float, seed: int) -> list[Arrival]:
        random = Random(seed)
        next_row = random.randrange(len(self.rows))
        gap_s = gamma_gaps(rate, 1.0, random.gammavariate)
        at_s, planned = gap_s(), list[Arrival]()
        while at_s < duration_s:
            row = self.rows[next_row % len(self.rows)]
            planned.append(self.limits.applied(row)._replace(at_s=at_s))
            next_row += 1
            at_s += gap_s()
        return planned

    async def run(
        self, client: LoadClient, model: str, rate: float, duration_s: float, seed: int
    ) -> list[RequestRecord]:
        payloads = PayloadMaker(model, Endpoint.COMPLETIONS, VOCAB_SIZE, (seed,))
        return await send(client, self.plan(rate, duration_s, seed), payloads)


def loads(azure_trace: Path | None, prefix_trace: Path | None) -> dict[str, Load]:
    """Return every load by its name, synthesized where no trace is given.

    Raises ValueError for a bad trace, and for a prefix trace without ``hash_ids``.
    """
    prefixes = _rows(prefix_trace) if prefix_trace else shared_prefixes()
    if not any(row.block_ids for row in prefixes):
        raise ValueError(f"{prefix_trace} has no hash_ids, so that no prompts share a prefix")
    azure = _rows(azure_trace) if azure_trace else _azure()
    found: list[Load] = [
        RequestLoad("azure_conv", (6.0, 8.0, 9.5, 11.0, 13.0), azure, _limits(AZURE_SCALE)),
        ChatLoad(),
        RequestLoad("prefixes", (2.2, 2.9, 3.6, 4.3, 5.0), prefixes, _limits(PREFIX_SCALE)),
    ]
    return {load.name: load for load in found}


def _limits(scale: float) -> LoadLimits:
    return LoadLimits(
        length_scale=scale,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        max_output_tokens=MAX_OUTPUT_TOKENS,
    )


def _rows(path: Path) -> tuple[Arrival, ...]:
    return read_trace(path, lenient=False).rows


def _azure() -> list[Arrival]:
    random = Random(0)
    return [Arrival(0.0, *lengths) for lengths in AZURE_CONVERSATIONS.lengths(random)]
