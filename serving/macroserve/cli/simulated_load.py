"""The requests to simulate, from the options of a load."""

from math import inf
from typing import NamedTuple

from macroserve.cli.load_options import LoadOptions, parse_duration
from macroserve.workload.arrivals import Arrival
from macroserve.workload.class_mix import ClassMix
from macroserve.workload.load import TraceLoad, plan


class Requests(NamedTuple):
    """Requests of a simulation, the first of which are only a warm-up."""

    arrivals: list[Arrival]
    num_before: int
    """Number of warm-up arrivals."""
    num_skipped: int
    """Invalid rows of the trace."""

    def mixed(self, classes: ClassMix, seed: int) -> "Requests":
        return self._replace(arrivals=classes.applied(self.arrivals, seed))

    def beyond(self, max_model_len: int) -> "Beyond":
        """Return which counted arrivals do not fit a model of that many tokens."""
        counted = self.arrivals[self.num_before :]
        too_long = [each for each in counted if each.num_prompt_tokens >= max_model_len]
        cut = [
            each for each in counted if each.num_prompt_tokens < max_model_len < _num_tokens(each)
        ]
        shortened = [each for each in counted if each.within(max_model_len) is not each]
        return Beyond(len(counted), len(too_long), len(cut), len(shortened), max_model_len)

    def that_fit(self, max_model_len: int) -> "Requests":
        """Return the requests that the endpoint accepts. Raises ValueError if there are none."""
        kept = [each.num_prompt_tokens < max_model_len for each in self.arrivals]
        if not any(kept[self.num_before :]):
            raise ValueError(
                f"every prompt exceeds spec.model.maxModelLen, {max_model_len:,} tokens"
            )
        arrivals = [
            each.within(max_model_len)
            for each, keep in zip(self.arrivals, kept, strict=True)
            if keep
        ]
        return Requests(arrivals, sum(kept[: self.num_before]), self.num_skipped)

    @property
    def num_requests(self) -> int:
        """Return the number of all requests, including all turns of conversations."""
        return sum(each.num_requests for each in self.arrivals)

    @property
    def duration_s(self) -> float:
        """Return the time from the first counted arrival to the last, seconds."""
        return self.arrivals[-1].at_s - self.arrivals[self.num_before].at_s


class Beyond(NamedTuple):
    """Counted arrivals that are longer than the model allows."""

    num_requests: int
    """Number of counted arrivals."""
    num_refused: int
    """Requests whose prompt leaves no room for an output token."""
    num_cut: int
    """Requests whose output ends early."""
    num_shortened: int
    """Conversations that end early."""
    max_model_len: int

    def sentences(self) -> list[str]:
        """Return one sentence per nonzero count."""
        model = f"spec.model.maxModelLen ({self.max_model_len:,} tokens)"
        found = []
        if self.num_refused:
            found.append(
                f"{self.num_refused:,} of {self.num_requests:,} requests have prompts longer than "
                f"{model} allows: the endpoint refuses them with 400"
            )
        if self.num_cut:
            found.append(
                f"{self.num_cut:,} of {self.num_requests:,} responses exceed {model}: "
                "they end there"
            )
        if self.num_shortened:
            found.append(
                f"{self.num_shortened:,} of {self.num_requests:,} conversations end before a turn "
                f"that would not fit {model}"
            )
        return found


def _num_tokens(arrival: Arrival) -> int:
    return arrival.num_prompt_tokens + arrival.num_output_tokens


def requests(
    options: LoadOptions, duration: str | None, default_duration: str, warm_up_s: float
) -> Requests:
    """Return the requests that the options name.

    Traces are replayed whole by default; synthetic loads have ``warm_up_s`` more before the counted
    requests. Raises ValueError for contradictory options, invalid rows, and a load without
    requests.
    """
    load = options.load()
    is_trace = isinstance(load, TraceLoad)
    before_s, duration_s = (0.0 if is_trace else warm_up_s), inf
    if duration or not is_trace:
        duration_s = parse_duration("--duration", duration or default_duration) + before_s
    arrivals = list(plan(load, options.limits(duration_s), options.seed))
    num_before = sum(arrival.at_s < before_s for arrival in arrivals)
    if num_before == len(arrivals):
        raise ValueError("no request arrives within --duration")
    return Requests(arrivals, num_before, load.trace.num_skipped if is_trace else 0)
