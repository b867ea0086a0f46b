"""Input and output of routing: ``RouteRequest`` and ``RouteDecision``."""

from dataclasses import dataclass
from enum import StrEnum

from macroserve.core.request import Request
from macroserve.core.status import InstanceView


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request to route, with ``request.arrival_s`` on the router's clock."""

    request: Request
    num_output_tokens: int
    """Predicted tokens of the response."""
    offloaded: bool = False
    """Whether an LP instance handed it back because it was about to miss its TTFT target."""
    exclude: frozenset[str] = frozenset()
    """Names of instances that must not get it, such as one that just failed to answer."""
    trial: bool = False
    """Whether this is its last attempt after instances broke; see ``attempts``."""
    prefix: tuple[int, ...] = ()
    """Keys of the prompt's prefixes; see ``prefixes``."""
    session: int | None = None
    """Key of its client's session; see ``sessions``."""

    @property
    def num_tokens(self) -> int:
        """Return the final length of the sequence, prompt and response."""
        return self.request.num_prompt_tokens + self.num_output_tokens

    def ttft_left_s(self, now: float) -> float:
        """Return the seconds left of the TTFT target, negative once missed.

        A request that has streamed from an earlier instance gets the whole target for its next
        token.
        """
        if self.request.num_streamed_tokens:
            return self.request.slo.ttft_s
        return self.request.deadline_s - now


class RouteReason(StrEnum):
    """Reason for the choice of an instance, or of none."""

    NO_INSTANCE = "no_instance"
    """No instance has reported and is neither draining nor excluded."""
    LEAST_LOAD = "least_load"
    """Fewest outstanding requests, then least work."""
    SATISFIES = "satisfies"
    """First in cyclic order to satisfy the constraints (EcoServe, Algorithm 1)."""
    LEAST_WAIT = "least_wait"
    """No instance satisfies the constraints; this one has the earliest predicted first token."""
    ROUND_ROBIN = "round_robin"
    """Next LP instance in turn."""
    TICKET = "ticket"
    """An idle HP instance asked for one new request (Ascendra, section 6.1)."""
    URGENT = "urgent"
    """LP handed the request back or would miss its TTFT target, so HP takes it."""

    TRIAL = "trial"
    """Last attempt after breaks, where the fewest other requests are at stake."""
    TRIALS_BUSY = "trials_busy"
    """No trial can start: every instance already runs one."""

    @property
    def in_turn(self) -> bool:
        """Return whether the next request's cyclic order starts from the chosen instance."""
        return self in (RouteReason.SATISFIES, RouteReason.LEAST_WAIT, RouteReason.ROUND_ROBIN)


class Check(StrEnum):
    """Result of EcoServe's Algorithm 2: satisfied, or the first violated constraint."""

    SATISFIED = "satisfied"
    TTFT = "ttft"
    TPOT = "tpot"
    MEMORY = "memory"


Choice = tuple[InstanceView, RouteReason]
"""A policy's chosen instance and its reason."""


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The choice of an instance for a request."""

    instance: str | None
    reason: RouteReason
    predicted_wait_s: float
    """Least time to the first token, seconds: the prefills ahead, then its own; infinite without an
    instance."""
    check: Check | None
    """Result of the constraints on the instance; None without an instance."""
    late: bool
    """Whether every instance is predicted to emit the first token too late."""
    num_cached: int = 0
    """Prompt tokens expected in the instance's prefix cache."""

    @property
    def satisfied(self) -> bool:
        return self.check is Check.SATISFIED

    @property
    def refusal(self) -> str:
        """Return why the cell would refuse the request: the violated constraint, or the reason for
        having no instance."""
        return (self.check or self.reason).value
