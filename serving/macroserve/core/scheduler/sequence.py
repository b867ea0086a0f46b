"""The instance scheduler's mutable record of one request, and its states."""

from enum import Enum
from math import inf

from macroserve.core.request import Request
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.config import OVERDUE_TTFTS


class State(Enum):
    WAITING = "waiting"
    """Without KV: new, or preempted and to be recomputed."""
    PREFILLING = "prefilling"
    LOADING = "loading"
    """Waiting for cache blocks that the engine loads before it continues the prefill."""
    DECODING = "decoding"
    PAUSED = "paused"
    """Waiting with its KV for a reservation or a free block."""
    ENDING = "ending"
    """At the maximum length once the batches in flight end."""
    FINISHED = "finished"


_NEXT: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILLING, State.FINISHED}),
    State.PREFILLING: frozenset(
        {State.LOADING, State.DECODING, State.PAUSED, State.WAITING, State.FINISHED}
    ),
    State.LOADING: frozenset({State.PREFILLING, State.FINISHED}),
    State.DECODING: frozenset({State.PAUSED, State.WAITING, State.ENDING, State.FINISHED}),
    State.ENDING: frozenset({State.FINISHED}),
    State.PAUSED: frozenset({State.DECODING, State.WAITING, State.ENDING, State.FINISHED}),
    State.FINISHED: frozenset(),
}


class IllegalMoveError(Exception):
    """A move that the state of a sequence does not allow; the sequence stays as it was."""


class Sequence:
    """One request's progress on this instance."""

    __slots__ = (
        "arrival_s",
        "borrowers",
        "cache",
        "cost_s",
        "deadline_s",
        "first_token_s",
        "lender",
        "memory_s",
        "most_tokens",
        "num_borrowed",
        "num_cached",
        "num_computed",
        "num_emitted",
        "num_prompt",
        "num_slots",
        "num_slow",
        "num_tokens",
        "ordinal",
        "patience_s",
        "pending_since_s",
        "predicted_tokens",
        "prefill_s",
        "queued_s",
        "request",
        "request_id",
        "service_s",
        "started",
        "state",
        "sure_tokens",
        "tpot_budget_until_s",
        "tpot_s",
    )

    def __init__(
        self,
        request: Request,
        ordinal: int,
        queued_s: float,
        predicted_tokens: int,
        prefill_s: float,
        service_s: float,
        memory_s: float,
        sure_tokens: int = 0,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival_s = request.arrival_s
        self.deadline_s = request.deadline_s
        self.tpot_s = request.slo.tpot_s
        self.ordinal = ordinal
        """Unique position in order of acceptance by this instance."""
        self.queued_s = queued_s
        """When it came to this instance."""
        self.state = State.WAITING
        self.started = False
        """Whether its prefill has ever begun here."""

        self.num_prompt = request.num_prompt_tokens
        """Tokens to compute before the next one is emitted: the prompt and, after a preemption, the
        tokens emitted before."""
        self.num_computed = 0
        self.num_cached = 0
        """Tokens in the prefix cache when it began or, while it waits, at the last look-up."""
        self.num_tokens = request.num_prompt_tokens
        """Prompt and emitted tokens, up to ``most_tokens``."""
        self.most_tokens = request.num_prompt_tokens + request.max_new_tokens
        self.num_emitted = 0
        self.predicted_tokens = predicted_tokens
        """Expected length of the response on this instance, including emitted tokens."""
        self.sure_tokens = sure_tokens
        """Length that the response on this instance is nearly sure to reach."""

        self.memory_s = memory_s
        """Time that the memory of its response costs others, seconds."""
        self.cost(prefill_s, service_s)

        self.first_token_s = 0.0
        self.tpot_budget_until_s = 0.0
        """Time until which the emitted tokens keep the TPOT target. Minus now, this is the saved
        TPOT of EcoServe's Algorithm 2, with L-1 for L as the first token costs no TPOT."""
        self.pending_since_s = request.arrival_s
        """Start of its reader's wait for the next token."""
        self.patience_s = (
            request.slo.patience_s if self.is_streaming else self.deadline_s - self.arrival_s
        )
        """Longest such wait within the targets, seconds; -inf after a late first token."""
        self.num_slow = 0
        """Tokens whose gap to the previous one exceeds the target."""

        self.cache = CacheKind.KV
        """Form in which its tokens are cached while it runs."""
        self.num_slots = 0
        """Capacity of its KV blocks, tokens."""
        self.lender: Sequence | None = None
        """Sequence that lends it blocks."""
        self.num_borrowed = 0
        self.borrowers: list[Sequence] = []
        """Sequences to which it lends blocks."""

    def cost(self, prefill_s: float, service_s: float, load_s: float = 0.0) -> None:
        """Set the times of its prefill.

        prefill_s: predicted time as part of a full batch, seconds.
        service_s: time in batches with decodes, seconds.
        load_s: time to load its blocks beforehand, during which others run, seconds.
        """
        self.prefill_s = prefill_s
        self.service_s = service_s + load_s
        # Time that it costs the requests behind it; the ordinal makes costs unique for triage.
        self.cost_s = max(service_s, self.memory_s) * (1 + 1e-12 * self.ordinal)

    def count_cached(self, num_tokens: int) -> None:
        """Count the tokens in the prefix cache as computed, before any others."""
        self.num_cached = self.num_computed = num_tokens

    @property
    def num_to_prefill(self) -> int:
        return self.num_prompt - self.num_computed

    @property
    def share_left(self) -> float:
        """Return the remaining share of its prefill."""
        return self.num_to_prefill / (self.num_prompt - self.num_cached)

    @property
    def cost_left_s(self) -> float:
        """Return the cost of the tokens still to be prefilled, seconds."""
        return self.cost_s * self.share_left

    @property
    def start_by_s(self) -> float:
        """Return when its prefill must begin or continue to meet its deadline."""
        return self.deadline_s - self.service_s * self.share_left

    @property
    def overdue_from_s(self) -> float:
        """Return when its wait for the prefill becomes too long."""
        return self.arrival_s + OVERDUE_TTFTS * self.request.slo.ttft_s

    @property
    def is_streaming(self) -> bool:
        """Return whether its reader has seen a token, from here or from an earlier instance."""
        return self.num_emitted > 0 or self.request.num_streamed_tokens > 0

    def is_late(self, now: float) -> bool:
        """Return whether its first token can no longer be in time."""
        return self.deadline_s < now and not self.is_streaming

    @property
    def num_remaining(self) -> int:
        """Return the tokens still expected, at least one."""
        return max(1, self.predicted_tokens - self.num_emitted)

    def move(self, to: State) -> None:
        """Change the state. Raises IllegalMoveError for a move that is not in the table."""
        if to not in _NEXT[self.state]:
            raise IllegalMoveError(f"{self.request_id} cannot go from {self.state} to {to}")
        self.state = to

    def emit(self, num_tokens: int, now: float) -> None:
        """Count tokens that became visible at ``now``."""
        if not num_tokens:
            return
        if self.num_emitted:
            self.num_slow += self.request.slo.is_slow(now - self.pending_since_s)
        else:
            self.first_token_s = self.tpot_budget_until_s = now
            self.tpot_budget_until_s -= self.tpot_s
            self.patience_s = self.request.slo.patience_s if now <= self.deadline_s else -inf
        self.correct_tokens(num_tokens)
        self.pending_since_s = now

    def correct_tokens(self, num_tokens: int) -> None:
        """Count more tokens as of the last time; negative if too many had been counted."""
        self.num_emitted += num_tokens
        self.num_tokens += num_tokens
        self.tpot_budget_until_s += num_tokens * self.tpot_s

    def correct_first_token(self, now: float) -> None:
        """Set the time of a first token that was counted in advance to ``now``."""
        self.tpot_budget_until_s += now - self.first_token_s
        if self.num_emitted == 1:
            self.pending_since_s = now
        self.first_token_s = now
        self.patience_s = self.request.slo.patience_s if now <= self.deadline_s else -inf

    def forget_cache(self) -> None:
        """Drop its KV: everything up to the last token must be recomputed."""
        self.num_prompt = self.num_tokens
        self.num_computed = self.num_cached = 0
        self.num_slots = 0
        self.cache = CacheKind.KV

    def attained(self, end_s: float) -> bool:
        """Return whether it met its targets as seen by its reader, with its last token at
        ``end_s``. A request continued from another instance had its first token there."""
        if not self.num_emitted:
            return False
        is_continued = self.request.num_streamed_tokens > 0
        ttft_s = 0.0 if is_continued else self.first_token_s - self.arrival_s
        after_s = end_s - self.first_token_s
        return self.request.slo.is_met(ttft_s, after_s, self.num_emitted - 1, self.num_slow)
