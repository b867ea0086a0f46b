"""Measure the rate that a routing rule holds, with what the prefix caches have then."""

from dataclasses import dataclass

from macroserve_lab.papers.measurements import Goodput, Values


@dataclass(frozen=True, slots=True)
class HeldRate:
    """The measurement is a goodput, and the share of the prompt tokens that the prefix caches have
    at that rate, or at the lowest one where none is held."""

    goodput: Goodput

    @property
    def key(self) -> str:
        return self.goodput.key

    @property
    def hits(self) -> str:
        """Return the key of the share."""
        return f"{self.key}, cache hits"

    def measure(self, seed: int) -> Values:
        held = self.goodput.measure(seed)
        outcome = self.goodput.served(held, seed)
        return {**held, self.hits: outcome.prefix_cache_hit_ratio}
