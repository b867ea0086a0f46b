"""The requests to simulate, from the options that name a load."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from macroserve.cli.load_options import given_load, parse_duration
from macroserve.workload.arrivals import Arrival
from macroserve.workload.load import LoadLimits, TraceLoad, plan


class Requests(NamedTuple):
    """num_before: so many of the first arrivals do not count. num_skipped: bad rows of a trace."""

    arrivals: list[Arrival]
    num_before: int
    num_skipped: int

    def beyond(self, max_model_len: int) -> "Beyond":
        """What of the arrivals that count does not fit a model of that many tokens."""
        counted = self.arrivals[self.num_before :]
        too_long = [each for each in counted if each.num_prompt_tokens >= max_model_len]
        cut = [
            each for each in counted if each.num_prompt_tokens < max_model_len < _num_tokens(each)
        ]
        return Beyond(len(counted), len(too_long), len(cut), max_model_len)

    def that_fit(self, max_model_len: int) -> "Requests":
        """Those that the endpoint takes. Raises ValueError when it takes none."""
        kept = [each.num_prompt_tokens < max_model_len for each in self.arrivals]
        if not any(kept[self.num_before :]):
            raise ValueError(
                "every prompt is longer than spec.model.maxModelLen, "
                f"{max_model_len:,} tokens, allows"
            )
        arrivals = [each for each, keep in zip(self.arrivals, kept, strict=True) if keep]
        return Requests(arrivals, sum(kept[: self.num_before]), self.num_skipped)

    @property
    def duration_s(self) -> float:
        return self.arrivals[-1].at_s - self.arrivals[self.num_before].at_s


class Beyond(NamedTuple):
    """num_refused: prompts that leave no room for a token. num_cut: responses that end early."""

    num_requests: int
    num_refused: int
    num_cut: int
    max_model_len: int

    def sentences(self) -> list[str]:
        """One for each kind that there is."""
        model = f"spec.model.maxModelLen ({self.max_model_len:,} tokens)"
        found = []
        if self.num_refused:
            found.append(
                f"{self.num_refused:,} of {self.num_requests:,} requests have prompts longer than "
                f"{model} allows: the endpoint refuses them with 400"
            )
        if self.num_cut:
            found.append(
                f"{self.num_cut:,} of {self.num_requests:,} responses are longer than {model} "
                "leaves: they end there"
            )
        return found


def _num_tokens(arrival: Arrival) -> int:
    return arrival.num_prompt_tokens + arrival.num_output_tokens


def requests(given: Mapping[str, Any], default_duration: str, warm_up_s: float) -> Requests:
    """given: a command's parameters by name, those of ``cli.load.options`` among them.

    A trace is replayed whole unless ``duration`` says otherwise; synthetic requests of
    ``warm_up_s`` come before those that count. Raises ValueError for options that contradict each
    other, bad rows and no requests.
    """
    load, duration = given_load(given), given["duration"]
    is_trace = isinstance(load, TraceLoad)
    before_s, duration_s = (0.0 if is_trace else warm_up_s), inf
    if duration or not is_trace:
        duration_s = parse_duration("--duration", duration or default_duration) + before_s
    limits = LoadLimits(
        duration_s=duration_s,
        length_scale=given["length_scale"],
        max_prompt_tokens=given["max_prompt_tokens"],
        max_output_tokens=given["max_output_tokens"],
    )
    arrivals = list(plan(load, limits, given["seed"]))
    num_before = sum(arrival.at_s < before_s for arrival in arrivals)
    if num_before == len(arrivals):
        raise ValueError("no request arrives within --duration")
    return Requests(arrivals, num_before, load.trace.num_skipped if is_trace else 0)
