"""Kinds of iterations: the first one of a kind may compile kernels, which takes minutes."""

from collections import deque
from collections.abc import Iterable

from vllm.sampling_params import SamplingParams

_DEFAULTS = SamplingParams()
# Parameters that select the kernels for sampling.
_FIELDS = (
    "structured_outputs",
    "logprobs",
    "prompt_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
)


class StepKinds:
    """Kinds of past iterations, by sampling parameters and by size in powers of two."""

    def __init__(self) -> None:
        self._known: set[str | int] = set()
        self._running: deque[set[str | int]] = deque()
        self._new: dict[str, set[str]] = {}
        """Kinds that are new with a request, by its id."""

    def add(self, request_id: str, params: SamplingParams) -> None:
        used = {name for name in _FIELDS if getattr(params, name) != getattr(_DEFAULTS, name)}
        if not used <= self._known:
            self._new[request_id] = used

    def remove(self, request_id: str) -> None:
        self._new.pop(request_id, None)

    def begin(self, num_tokens: int, request_ids: Iterable[str]) -> bool:
        """Return whether the iteration is the first of its kind."""
        used: set[str | int] = {num_tokens.bit_length()}
        if self._new:
            used.update(*(self._new.get(request_id, ()) for request_id in request_ids))
        self._running.append(used)
        return not used <= self._known

    def end(self) -> None:
        """Record the end of the oldest iteration."""
        self._known |= self._running.popleft()
        if self._new:
            self._new = {name: used for name, used in self._new.items() if not used <= self._known}
