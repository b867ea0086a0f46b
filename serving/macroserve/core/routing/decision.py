"""What routing is asked, and what it answers."""

from dataclasses import dataclass
from enum import StrEnum

from macroserve.core.request import Request
from macroserve.core.status import InstanceView


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request in search of an instance.

    request: its ``arrival_s`` on the clock of the scheduler that routes it.
    num_output_tokens: predicted length of its response.
    offloaded: an LP instance handed it back because its TTFT target was about to be missed.
    exclude: instances that must not get it, such as one that just failed to answer.
    prefilled: its KV cache is elsewhere, and comes after it.
    trial: instances broke under it; this is its last attempt.
    """

    request: Request
    num_output_tokens: int
    offloaded: bool = False
    exclude: frozenset[str] = frozenset()
    prefilled: bool = False
    trial: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that its KV cache will hold at its end."""
        return self.request.num_prompt_tokens + self.num_output_tokens

    def ttft_left_s(self, now: float) -> float:
        """What is left of its TTFT target, negative once missed.

        A request that streamed tokens from an earlier instance has its first token out; it gets
        the whole target again for its next one.
        """
        if self.request.num_streamed_tokens:
            return self.request.slo.ttft_s
        return self.request.deadline_s - now


class RouteReason(StrEnum):
    """Why that instance, or none."""

    NO_INSTANCE = "no_instance"
    """The cell has no instance, or none that has reported and is not draining or excluded."""
    LEAST_LOAD = "least_load"
    """Fewest requests that have not ended, of these by work."""
    SATISFIES = "satisfies"
    """The first in cyclic order to satisfy the constraints (EcoServe, Algorithm 1)."""
    LEAST_WAIT = "least_wait"
    """None satisfies the constraints: the first token is predicted soonest here."""
    ROUND_ROBIN = "round_robin"
    """Its turn among the LP instances."""
    TICKET = "ticket"
    """An idle HP instance asked for one new request (Ascendra, section 6.1)."""
    URGENT = "urgent"
    """Handed back by an LP instance, or too close to its TTFT target for one: HP takes it."""

    TRIAL = "trial"
    """The last attempt of a request under which instances broke: least is lost here."""
    TRIALS_BUSY = "trials_busy"
    """Such a request waits: every instance has another one."""

    @property
    def in_turn(self) -> bool:
        """Whether the next request's cyclic order starts from the instance so chosen."""
        return self in (RouteReason.SATISFIES, RouteReason.LEAST_WAIT, RouteReason.ROUND_ROBIN)


Choice = tuple[InstanceView, RouteReason]
"""A policy's choice among instances, and the reason."""


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """Which instance takes a request.

    predicted_wait_s: least time from now to its first token there (infinite without instance):
        the prefills before it, and its own.
    satisfied: the constraints of EcoServe's Algorithm 2 hold there.
    late: its first token is due before any instance could emit it, by that same prediction.
    """

    instance: str | None
    reason: RouteReason
    predicted_wait_s: float
    satisfied: bool
    late: bool
