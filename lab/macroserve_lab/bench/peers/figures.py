"""Figures of a comparison: medians of rounds, with minimum and maximum."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from macroserve_lab.bench.peers.journal import Idle, Point
from macroserve_lab.bench.peers.knee import Knee, knee
from macroserve_lab.bench.peers.sizes import SIZES

OURS = "macroserve"
LEVEL = 0.9
"""Share of requests within their targets up to which a rate counts."""
CPU_PEER = "vllm_router_"
"""Prefix of the deployments to compare CPU seconds with: vLLM's API servers and its router."""

K = TypeVar("K")
V = TypeVar("V")
Figures = dict[str, float]
Knees = dict[int, Knee]
"""Knees by round."""


def figures(points: Sequence[Point], idles: Sequence[Idle]) -> Figures:
    """Return all figures: ratios first, where Macroserve and a peer were measured. Points that do
    not count are left out."""
    points = [point for point in points if point.counts]
    details = _by(points, lambda point: (point.deployment, point.load))
    knees = {key: _knees(found) for key, found in details.items()}
    names = sorted({point.deployment for point in points})
    loads = sorted({point.load for point in points})
    found: Figures = {}
    for load in loads:
        of_load = {name: knees[name, load] for name in names if (name, load) in knees}
        if OURS in of_load and (best := _best_peer(of_load)):
            found |= _goodput_ratio(load, of_load[OURS], of_load[best])
            ours, theirs = details[OURS, load], details[best, load]
            found |= _p99_ttft_ratio(load, ours, theirs, of_load[best])
    cpu = {name: _cpu_s(points, name) for name in names}
    found |= _cpu_ratio(cpu)
    if ours := [idle.cpu_pct for idle in idles if idle.deployment == OURS]:
        found["peers.idle_cpu_pct"] = median(ours)
    for name in names:
        found |= _spread(
            f"peers.{name}.cpu_ms_per_request", (1e3 * cpu_s for cpu_s in cpu[name].values())
        )
        of_name = [point for point in points if point.deployment == name]
        found |= _spread(f"peers.{name}.rss_mb", (point.rss_mb for point in of_name))
        found |= _spread(
            f"peers.{name}.engine_cpu_ms_per_request",
            (1e3 * point.engine_cpu_s / max(1, point.num_requests) for point in of_name),
        )
        found |= _idle(name, [idle for idle in idles if idle.deployment == name])
        for load in loads:
            found |= _load(name, load, details.get((name, load), []), knees.get((name, load), {}))
    return found


def _load(name: str, load: str, points: Sequence[Point], knees: Knees) -> Figures:
    start = f"peers.{name}.{load}"
    found = _spread(f"{start}.rate_at_90", (each.rate for each in knees.values()))
    if knees:
        found[f"{start}.rounds_outside"] = sum(each.is_outside for each in knees.values())
    for rate, same in sorted(_by(points, lambda point: point.rate).items()):
        at = f"{start}.{rate:g}"
        found |= _spread(f"{at}.attainment", (point.attainment for point in same))
        for size in SIZES:
            if shares := [s for p in same if (s := p.attainment_by_size.get(size)) is not None]:
                found[f"{at}.attainment_{size}"] = median(shares)
        for quantile in ("p50", "p90", "p99", "max"):
            for latency in ("ttft_s", "tpot_s"):
                values = [v for p in same if (v := getattr(p, latency).get(quantile)) is not None]
                if values:
                    found[f"{at}.{latency[:4]}_{quantile}_ms"] = 1e3 * median(values)
        found[f"{at}.tokens_per_s"] = median(point.tokens_per_s for point in same)
        if cached := [p.cached_share for p in same if p.cached_share is not None]:
            found[f"{at}.cached_share"] = median(cached)
        if late := [p.late_p99 for p in same if p.late_p99 is not None]:
            found[f"{at}.late_p99"] = max(late)
        found[f"{at}.idle"] = min(point.idle for point in same)
        found[f"{at}.queue_growth"] = median(point.queue_growth for point in same)
        num_requests = max(1, sum(point.num_requests for point in same))
        found[f"{at}.failed_share"] = sum(point.num_failed for point in same) / num_requests
        found[f"{at}.refused_share"] = sum(point.num_refused for point in same) / num_requests
    return found


def _idle(name: str, idles: Sequence[Idle]) -> Figures:
    if not idles:
        return {}
    return {
        f"peers.{name}.idle_cpu_pct": median(idle.cpu_pct for idle in idles),
        f"peers.{name}.idle_engine_cpu_pct": median(idle.engine_cpu_pct for idle in idles),
        f"peers.{name}.idle_rss_mb": median(idle.rss_mb for idle in idles),
        f"peers.{name}.start_s": median(idle.start_s for idle in idles),
    }


def _knees(points: Sequence[Point]) -> Knees:
    by_round = _by(points, lambda point: point.round)
    return {
        round_: knee([(point.rate, point.held) for point in found], LEVEL)
        for round_, found in by_round.items()
    }


def _best_peer(knees: Mapping[str, Knees]) -> str | None:
    """Return the peer with the highest median rate, None without peers."""
    peers = {name: found for name, found in knees.items() if not name.startswith(OURS)}
    medians = {name: median(each.rate for each in found.values()) for name, found in peers.items()}
    return max(medians, key=medians.__getitem__, default=None)


def _goodput_ratio(load: str, ours: Knees, best: Knees) -> Figures:
    """Return the ratio of our rate to that of the best peer."""
    both = ours.keys() & best.keys()
    ratios = (ours[round_].rate / best[round_].rate for round_ in both)
    return _spread(f"peers.goodput_ratio.{load}", ratios)


def _p99_ttft_ratio(
    load: str, ours: Sequence[Point], best: Sequence[Point], knees: Knees
) -> Figures:
    """Return our P99 of TTFT as a multiple of the best peer's, at that peer's rate of the round."""
    our_rounds, their_rounds = (_by(points, lambda point: point.round) for points in (ours, best))
    ratios = (
        _p99_ttft_s(our_rounds[round_], at.rate) / _p99_ttft_s(their_rounds[round_], at.rate)
        for round_, at in knees.items()
        if round_ in our_rounds
    )
    return _spread(f"peers.p99_ttft_ratio.{load}", ratios)


def _p99_ttft_s(points: Sequence[Point], rate: float) -> float:
    """Return P99 of TTFT at a rate, interpolated between swept rates."""
    ordered = sorted(points, key=lambda point: point.rate)
    rates = [point.rate for point in ordered]
    return float(np.interp(rate, rates, [point.ttft_s["p99"] for point in ordered]))


def _cpu_s(points: Sequence[Point], name: str) -> dict[int, float]:
    """Return the CPU seconds per request outside the engines, by round, over all loads."""
    by_round = _by([p for p in points if p.deployment == name], lambda point: point.round)
    return {
        round_: sum(p.cpu_s for p in found) / max(1, sum(p.num_requests for p in found))
        for round_, found in by_round.items()
    }


def _cpu_ratio(cpu_s: Mapping[str, Mapping[int, float]]) -> Figures:
    """Return our CPU seconds per request as a multiple of vLLM's with its router, its minimum."""
    routers = [found for name, found in cpu_s.items() if name.startswith(CPU_PEER) and found]
    if OURS not in cpu_s or not routers:
        return {}
    least = min(routers, key=lambda found: median(found.values()))
    ours = cpu_s[OURS]
    both = [round_ for round_ in ours.keys() & least.keys() if least[round_] > 0]
    return _spread("peers.cpu_ratio", (ours[round_] / least[round_] for round_ in both))


def _spread(name: str, values: Iterable[float]) -> Figures:
    """Return the median, minimum and maximum, by keys with ``name``."""
    found = list(values)
    if not found:
        return {}
    return {name: median(found), f"{name}_min": min(found), f"{name}_max": max(found)}


def _by(values: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for value in values:
        groups[key(value)].append(value)
    return dict(groups)
