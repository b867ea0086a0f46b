"""Load of many clients with individual rates, bursts and lengths."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from macroserve.workload.arrivals import Arrival
from macroserve.workload.servegen import Client

WINDOW_S = 600
"""Length of a window in ServeGen's files, seconds."""
MAX_RATE = 10_000.0
"""Maximum requests per second, as whole windows are drawn at once."""


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Constant total rate divided between clients, whose shares, bursts and lengths change from
    window to window (ServeGen's ``generate_workload``).

    Raises ValueError for an impossible rate, or if no client sends anything after ``start_s``.
    """

    rate: float
    """Requests per second of all clients together."""
    clients: tuple[Client, ...]
    start_s: float = 0.0
    """Start of the load on the clock of the clients' files."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= MAX_RATE:
            raise ValueError(f"the rate of clients must be above 0 and at most {MAX_RATE:,.0f}")
        if not self._starts_s():
            raise ValueError("no client sends requests after the start")

    @property
    def intensity(self) -> float:
        return self.rate

    @property
    def unit(self) -> str:
        return "req/s"

    def at(self, intensity: float) -> Self:
        return replace(self, rate=intensity)

    def max_intensity(self, duration_s: float) -> float:
        return MAX_RATE

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        rng = np.random.default_rng(seed)
        for start_s in self._starts_s():
            for arrival in sorted(self._window(start_s, rng)):
                at_s = arrival.at_s - self.start_s
                if at_s >= 0:
                    yield arrival._replace(at_s=at_s)

    def _starts_s(self) -> list[int]:
        """Return the starts of windows with requests, from ``start_s`` on."""
        starts_s = {start_s for client in self.clients for start_s in client.windows}
        return sorted(each for each in starts_s if each + WINDOW_S > self.start_s)

    def _window(self, start_s: int, rng: np.random.Generator) -> Iterator[Arrival]:
        known = [
            (client.windows[start_s], lengths)
            for client in self.clients
            if start_s in client.windows and (lengths := client.lengths_at(start_s))
        ]
        of_rate = self.rate / sum(window.rate for window, _ in known) if known else 0.0
        for window, (prompts, outputs) in known:
            # Random rounding keeps the mean, as most clients send only a few requests.
            number = math.floor(of_rate * window.rate * WINDOW_S + rng.random())
            gaps = window.pattern.draw(window.shape, number + 1, rng)
            total = gaps.sum()
            shares = np.minimum(np.cumsum(gaps[:-1]) / total, 1.0) if total > 0 else gaps[:-1]
            lengths = zip(prompts.draw(number, rng), outputs.draw(number, rng), strict=True)
            for share, (prompt, output) in zip(shares.tolist(), lengths, strict=True):
                yield Arrival(start_s + share * WINDOW_S, prompt, output)
