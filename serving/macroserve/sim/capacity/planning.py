"""Search for the cheapest configuration that keeps the latency targets, by simulation."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from operator import attrgetter, itemgetter
from statistics import mean
from typing import NamedTuple

from macroserve.core.scaling.mitosis import Bounds
from macroserve.core.slo_class import SloClass
from macroserve.core.status import Ended
from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Strategy
from macroserve.sim.capacity.capacity import fewest
from macroserve.sim.capacity.pools import other_ratios
from macroserve.sim.results import RunResult, StopRule
from macroserve.sim.scenario import ClusterSpec, Scenario
from macroserve.workload.arrivals import Arrival

SCREENED_S = 300.0
"""Length of the busiest stretch, on which candidates are tried first, seconds."""

LEAD_IN_S = 300.0
"""Seconds of arrivals simulated before each piece of a load, which do not count. Pieces run in
parallel; while targets are kept, earlier arrivals have no effect."""

CELL_SIZES = (4, 8, 16)
"""Upper bounds on a cell to try, smallest first, so that a cell's failure affects few instances."""


class InfeasibleError(ValueError):
    """Targets that no number of instances can keep; the message names the reason."""


@dataclass(frozen=True, slots=True)
class Need:
    """A load, its target attainment and the available devices."""

    arrivals: Sequence[Arrival]
    goal: float
    """Target attainment of the default SLO class."""
    num_devices: int
    """Maximum number of devices."""
    per_node: int
    """Devices per node; an instance stays within one node."""

    @property
    def num_requests(self) -> int:
        """Return the number of requests including all turns of conversations."""
        return _num_requests(self.arrivals)

    @property
    def slo_classes(self) -> set[SloClass]:
        """Return the SLO classes of the requests except the default one."""
        return {arrival.slo_class for arrival in self.arrivals if arrival.slo_class}

    @property
    def stop(self) -> StopRule:
        """Return when a simulation of the whole load ends; goals of classes are checked at the
        end."""
        return StopRule(goal=0.0 if self.slo_classes else self.goal)

    def most_instances(self, scenario: Scenario) -> int:
        return self.num_devices // scenario.cluster.ranks

    def attainment(self, outcome: RunResult) -> float:
        """Return the attainment to compare with the goal."""
        return outcome.worst_attainment(self.slo_classes, self.goal)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A simulated configuration."""

    scenario: Scenario
    num_instances: int | None
    """Fewest instances that attain the goal; None if the most that were tried do not."""
    upper_bound: int
    """Maximum instances in a cell."""
    attainment: float | None
    """Attainment with that number; None if only known to be below the goal."""
    prefix_cache_hit_ratio: float
    """Share of prompt tokens found in prefix caches, with that number or the most tried."""

    @property
    def num_devices(self) -> int | None:
        return None if self.num_instances is None else self.num_instances * self.ranks

    @property
    def bounds(self) -> Bounds:
        return _bounds(self.upper_bound)

    @property
    def ranks(self) -> int:
        return self.scenario.cluster.ranks


def search(
    scenario: Scenario,
    need: Need,
    num_processes: int,
    on_candidate: Callable[[Candidate], None],
    strategies: Sequence[Strategy] = tuple(STRATEGIES.values()),
) -> Candidate:
    """Return the candidate with the fewest devices, then the highest attainment.

    scenario: model, device, link, targets and limits; its ranks, number of instances and strategy
        are ignored.
    strategies: strategies to try, as their engines run them.

    The search varies first the devices per instance, then the share of HP instances, the strategy
    and the size of cells. Each time it looks for the fewest instances that withstand the busiest
    stretch, on no more devices than the best candidate so far; the winner must withstand the whole
    load. Raises InfeasibleError if no candidate does.
    """
    stretch = busiest(need.arrivals, SCREENED_S)
    options = [_with(scenario, ranks) for ranks in _rank_counts(scenario.cluster, need)]
    if reason := _why_infeasible(options, need):
        raise InfeasibleError(reason)
    with ProcessPoolExecutor(num_processes) as pool:

        def best(
            scenarios: Sequence[Scenario], so_far: Sequence[Candidate] = ()
        ) -> list[Candidate]:
            """Return all candidates, the best first."""
            most = so_far[0].num_devices if so_far else None
            screened = replace(need, arrivals=stretch, num_devices=most or need.num_devices)
            found = list(pool.map(partial(_sized, need=screened), scenarios))
            for candidate in found:
                on_candidate(candidate)
            return sorted([*so_far, *found], key=_cost)

        line = best(options)
        first = line[0].scenario
        if first.strategy.uses_pools:
            ratios = other_ratios(first.high_priority_ratio)
            line = best([replace(first, high_priority_ratio=ratio) for ratio in ratios], line)
        first = line[0].scenario
        others = [each for each in strategies if each.name != first.strategy.name]
        line = best([_of_strategy(first, each) for each in others], line)
        for candidate in line:
            if candidate.num_instances is None:
                break
            if chosen := _proved(candidate, need, pool.map, num_processes):
                on_candidate(chosen)
                return chosen
        held = max(pool.map(partial(_percent_held, need=replace(need, arrivals=stretch)), options))
    raise InfeasibleError(
        f"no configuration on {need.num_devices} devices keeps {need.goal:.0%} of the requests "
        f"within the targets; with {scenario.strategy.name} they do if {held}% as many come as in "
        f"the busiest {SCREENED_S:g} s"
    )


def busiest(arrivals: Sequence[Arrival], span_s: float) -> Sequence[Arrival]:
    """Return the arrivals of the stretch of ``span_s`` with the most tokens, timed from its
    start."""
    best, most, tokens, first = (0, 0), -1, 0, 0
    for last, arrival in enumerate(arrivals):
        tokens += arrival.num_new_tokens
        while arrivals[first].at_s <= arrival.at_s - span_s:
            tokens -= arrivals[first].num_new_tokens
            first += 1
        if tokens > most:
            best, most = (first, last + 1), tokens
    start_s = arrivals[best[0]].at_s
    return [each._replace(at_s=each.at_s - start_s) for each in arrivals[best[0] : best[1]]]


def _rank_counts(cluster: ClusterSpec, need: Need) -> list[int]:
    """Return the powers of two that divide the heads and leave memory for a cache. Raises
    ValueError if there is none."""
    most = min(need.per_node, need.num_devices)
    found: list[int] = []
    ranks = 1
    while ranks <= most and cluster.model.num_heads % ranks == 0:
        tried = replace(cluster, ranks=ranks)
        if tried.has_memory:
            found.append(ranks)
        elif ranks > most // 2:
            _ = tried.num_kv_tokens  # raises with the reason
        ranks *= 2
    return found


def _with(scenario: Scenario, ranks: int) -> Scenario:
    return replace(scenario, cluster=replace(scenario.cluster, ranks=ranks))


def _of_strategy(scenario: Scenario, strategy: Strategy) -> Scenario:
    return replace(scenario, strategy=strategy, high_priority_ratio=strategy.high_priority_ratio)


def _sized(scenario: Scenario, need: Need) -> Candidate:
    """Return the candidate with the fewest instances that attain the goal, in one cell."""
    most = need.most_instances(scenario)
    outcomes: dict[int, RunResult] = {}

    def keeps(num_instances: int) -> bool:
        outcomes[num_instances] = _served(scenario, need, num_instances)
        return need.attainment(outcomes[num_instances]) >= need.goal

    if not keeps(most):
        return Candidate(scenario, None, most, None, outcomes[most].prefix_cache_hit_ratio)
    num = fewest(keeps, 1, most)
    found = outcomes[num]
    return Candidate(scenario, num, num, need.attainment(found), found.prefix_cache_hit_ratio)


def _percent_held(scenario: Scenario, need: Need) -> int:
    """Return the percentage of the load that all devices together can serve within the goal."""

    def is_lost(percent: int) -> bool:
        evenly = [each for i, each in enumerate(need.arrivals) if i * percent % 100 < percent]
        part = replace(need, arrivals=evenly)
        outcome = _served(scenario, part, need.most_instances(scenario))
        return part.attainment(outcome) < need.goal

    return fewest(is_lost, 1, 101) - 1


def _proved(
    candidate: Candidate, need: Need, run: Callable[..., Iterator[RunResult]], num_pieces: int
) -> Candidate | None:
    """Return the candidate with the instances that the whole load needs, in the smallest cells."""
    pieces = in_pieces(need.arrivals, num_pieces)
    most_missed = (1 - need.goal) * need.num_requests + 1  # one more for rounding
    for num in range(candidate.num_instances or 1, need.most_instances(candidate.scenario) + 1):
        for bound in [*[size for size in CELL_SIZES if size < num], num]:
            tried = _with_cells(candidate.scenario, num, bound)
            outcomes = list(run(partial(piece_served, tried, most_missed), pieces))
            whole = joined(outcomes, need.num_requests)
            if need.attainment(whole) >= need.goal:
                return replace(
                    candidate,
                    num_instances=num,
                    upper_bound=bound,
                    attainment=need.attainment(whole),
                    prefix_cache_hit_ratio=whole.prefix_cache_hit_ratio,
                )
    return None


def joined(outcomes: Sequence[RunResult], num_requests: int) -> RunResult:
    """Return the result of all pieces of a load; requests that a piece left undecided count as
    missed. Hits are the mean over the pieces, which have equal sizes."""
    by_class: dict[str, Ended] = {}
    for outcome in outcomes:
        for name, ended in outcome.ended_by_class.items():
            by_class[name] = by_class.get(name, Ended()) + ended
    num_attained = sum(outcome.attained for outcome in outcomes)
    hits = mean(outcome.prefix_cache_hit_ratio for outcome in outcomes)
    return RunResult(num_requests, num_attained, True, by_class, prefix_cache_hit_ratio=hits)


class Piece(NamedTuple):
    """A piece of a load whose first ``num_before`` arrivals do not count."""

    arrivals: Sequence[Arrival]
    num_before: int


def in_pieces(arrivals: Sequence[Arrival], num_pieces: int) -> list[Piece]:
    """Return pieces with equal numbers of arrivals that count; fewer for a load not much longer
    than the lead-in."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    size = ceil(len(arrivals) / max(1, min(num_pieces, int(span_s / LEAD_IN_S))))
    pieces: list[Piece] = []
    for start in range(0, len(arrivals), size):
        first_s = arrivals[start].at_s - LEAD_IN_S
        first = bisect_left(arrivals, first_s, hi=start, key=attrgetter("at_s"))
        pieces.append(Piece(arrivals[first : start + size], start - first))
    return pieces


def piece_served(scenario: Scenario, most_missed: float, piece: Piece) -> RunResult:
    """Serve a piece until more requests have missed than may miss in all pieces together."""
    counted = piece.arrivals[piece.num_before :]
    has_classes = any(arrival.slo_class for arrival in counted)
    goal = 0.0 if has_classes else 1 - most_missed / _num_requests(counted)
    return scenario.serve(piece.arrivals, num_before=piece.num_before, stop=StopRule(goal=goal))


def _num_requests(arrivals: Sequence[Arrival]) -> int:
    return sum(arrival.num_requests for arrival in arrivals)


def _served(scenario: Scenario, need: Need, num_instances: int) -> RunResult:
    tried = _with_cells(scenario, num_instances, num_instances)
    return tried.serve(need.arrivals, stop=need.stop)


def _with_cells(scenario: Scenario, num_instances: int, upper_bound: int) -> Scenario:
    cluster = replace(scenario.cluster, num_instances=num_instances)
    return replace(scenario, cluster=cluster, bounds=_bounds(upper_bound))


def _bounds(upper: int) -> Bounds:
    """Return bounds with the highest lower bound that the upper one allows."""
    return Bounds((upper + 1) // 2, upper)


def _cost(candidate: Candidate) -> tuple[float, float]:
    devices = candidate.num_devices
    return inf if devices is None else devices, -(candidate.attainment or 0.0)


def _why_infeasible(scenarios: Sequence[Scenario], need: Need) -> str | None:
    """Return why no instance meets a target even for a single request, or None."""
    slo = scenarios[0].slo
    paces_s = {"tpot": slo.tpot_s, "tbt": inf if slo.tbt_s is None else slo.tbt_s}
    pace, pace_s = min(paces_s.items(), key=itemgetter(1))
    prefills_s: list[float] = []
    for scenario in scenarios:
        step = scenario.cluster.step_time(scenario.strategy)
        if step.seconds((), 1, 1) <= pace_s:
            lengths = sorted(
                length for arrival in need.arrivals for length in arrival.message_lengths
            )
            length = lengths[ceil(need.goal * len(lengths)) - 1]
            prefills_s.append(step.seconds([(length, 0)], 0, 0))
    name = scenarios[0].cluster.device.name
    if not prefills_s:
        return f"spec.slo.{pace} of {pace_s:g} s is less than a decode step alone takes on {name}"
    if min(prefills_s) > slo.ttft_s:
        return (
            f"spec.slo.ttft of {slo.ttft_s:g} s is less than the {min(prefills_s):.2g} s that a "
            f"prompt takes alone on {name}, longer than which are only {1 - need.goal:.0%} of them"
        )
    return None
