"""Routing takes a ``RouteRequest`` and returns a ``RouteDecision``."""

from dataclasses import dataclass
from enum import StrEnum

from macroserve.core.request import Request
from macroserve.core.status import InstanceView


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request needs an instance."""

    request: Request
    """The request, with ``arrival_s`` on the clock of the scheduler that routes it."""
    num_output_tokens: int
    """Predicted tokens of the response."""
    offloaded: bool = False
    """Whether an LP instance handed it back because it was about to miss its TTFT target."""
    exclude: frozenset[str] = frozenset()
    """Names of instances that must not get it, such as one that just failed to answer."""
    prefilled: bool = False
    """Whether its KV cache is on another instance and will be transferred."""
    trial: bool = False
    """Whether instances broke under it, so that this is its last attempt."""
    prefix: tuple[int, ...] = ()
    """Keys of the prompt's beginnings; see ``prefixes``."""
    session: int | None = None
    """Key of the session that its client names; see ``sessions``."""

    @property
    def num_tokens(self) -> int:
        """Return the tokens in the KV cache when the response is complete."""
        return self.request.num_prompt_tokens + self.num_output_tokens

    def ttft_left_s(self, now: float) -> float:
        """Return the seconds left of the TTFT target, negative once missed.

        The first token of a request that streamed tokens from an earlier instance is out; such a
        request gets the whole target again for its next token.
        """
        if self.request.num_streamed_tokens:
            return self.request.slo.ttft_s
        return self.request.deadline_s - now


class RouteReason(StrEnum):
    """The reason tells why routing chose the instance, or none."""

    NO_INSTANCE = "no_instance"
    """The cell has no instance, or none that has reported and is not draining or excluded."""
    LEAST_LOAD = "least_load"
    """The instance has the fewest outstanding requests, and the least work among equals."""
    SATISFIES = "satisfies"
    """The instance is the first in cyclic order to satisfy the constraints (EcoServe, Algorithm
    1)."""
    LEAST_WAIT = "least_wait"
    """No instance satisfies the constraints; the first token is predicted soonest here."""
    ROUND_ROBIN = "round_robin"
    """The instance is the next of the LP instances in turn."""
    TICKET = "ticket"
    """An idle HP instance asked for one new request (Ascendra, section 6.1)."""
    URGENT = "urgent"
    """An LP instance handed the request back or would miss its TTFT target, so HP takes it."""

    TRIAL = "trial"
    """The request makes its last attempt after breaks; the fewest other requests are at stake
    here."""
    TRIALS_BUSY = "trials_busy"
    """The request waits for its last attempt: every instance already runs a trial."""

    @property
    def in_turn(self) -> bool:
        """Return whether the next request's cyclic order starts from the instance so chosen."""
        return self in (RouteReason.SATISFIES, RouteReason.LEAST_WAIT, RouteReason.ROUND_ROBIN)


class Check(StrEnum):
    """The result of checking the constraints of EcoServe's Algorithm 2: satisfied, or the first
    constraint that is violated."""

    SATISFIED = "satisfied"
    TTFT = "ttft"
    TPOT = "tpot"
    MEMORY = "memory"


Choice = tuple[InstanceView, RouteReason]
"""The instance that a policy chooses, and the reason."""


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The decision names the instance that takes a request."""

    instance: str | None
    """Name of the instance, or None."""
    reason: RouteReason
    predicted_wait_s: float
    """Least time from now to the first token, seconds: the prefills before it, and its own.
    Infinite without an instance."""
    check: Check | None
    """Result of the constraints on the instance; None without an instance."""
    late: bool
    """Whether the first token is due before any instance could emit it, by the same prediction."""
    num_cached: int = 0
    """Prompt tokens that the instance is expected to have in its prefix cache."""

    @property
    def satisfied(self) -> bool:
        """Return whether the constraints hold on the instance."""
        return self.check is Check.SATISFIED

    @property
    def refusal(self) -> str:
        """Return why the cell refuses the request, if it does: no instance may take it, or the
        chosen one violates a constraint."""
        return (self.check or self.reason).value
