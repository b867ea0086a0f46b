"""Rules of other routers, for comparison in the simulator only."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from macroserve.core.routing.constraints import Demand, first_token_s
from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.prefixes import PrefixRecord
from macroserve.core.status import InstanceView
from macroserve.sim.instance import SimulatedInstance
from macroserve.sim.router import CellRouter

LOAD_FACTOR = 1.25
"""Maximum requests of an instance relative to the mean (consistent hashing with bounded loads,
KubeAI's default)."""
STICKY_S = 15.0
"""Maximum predicted TTFT at which a request goes where its prefix is cached, seconds."""


class Routing(StrEnum):
    """Rule for the choice of an instance."""

    OWN = "own"
    """The strategy's own rule."""
    ROUND_ROBIN = "round robin"
    LEAST_LOAD = "least load"
    """The fewest requests, regardless of caches."""
    SESSION = "session affinity"
    """By a hash of the prompt."""
    BOUNDED_HASH = "consistent hashing, bounded load"
    """By a hash of the prompt's first tokens, to the first instance without too many requests."""
    STICKY = "sticky until 15 s"
    """Where most of the prompt is cached, unless the wait there is longer than STICKY_S."""


class RivalRouter(CellRouter):
    """Router of a single cell with another rule."""

    def __init__(self, instances: Sequence[SimulatedInstance], routing: Routing) -> None:
        super().__init__(instances)
        self._by_mean = instances[0].policy.config.strategy.mean_slack
        self._routing = routing
        self._num_routed = 0
        self._prefixes = PrefixRecord()

    def assign(self, request: RouteRequest, now: float) -> str | None:
        views = [view for view in self._ledger.views if view.name not in request.exclude]
        if not views:
            return None
        chosen = self._chosen(views, request, now)
        others = [view.name for view in views if view is not chosen]
        self._num_routed += 1
        num_pool_tokens = chosen.status.num_blocks * chosen.status.block_size
        num_tokens = request.request.num_prompt_tokens
        self._prefixes.note(chosen.name, request.prefix, num_tokens, num_pool_tokens)
        only = replace(request, exclude=request.exclude.union(others))
        return self._ledger.assign(only, now).instance

    def _chosen(
        self, views: Sequence[InstanceView], request: RouteRequest, now: float
    ) -> InstanceView:
        least = min(views, key=lambda view: view.num_outstanding)
        match self._routing:
            case Routing.ROUND_ROBIN:
                return views[self._num_routed % len(views)]
            case Routing.SESSION if request.prefix:
                return _by_hash(views, request.prefix[-1])[0]
            case Routing.BOUNDED_HASH if request.prefix:
                num_all = 1 + sum(view.num_outstanding for view in views)
                most = LOAD_FACTOR * num_all / len(views)
                ordered = _by_hash(views, request.prefix[0])
                return next((view for view in ordered if view.num_outstanding < most), least)
            case Routing.STICKY:
                cached = self._prefixes.expected(request.prefix)
                demand = Demand.of(request, by_mean=self._by_mean, now=now, cached=cached)
                near = [view for view in views if first_token_s(view, demand) <= STICKY_S]
                warm = [view for view in near if view.name in cached]
                return max(warm, key=lambda view: cached[view.name], default=least)
            case _:
                return least


def _by_hash(views: Sequence[InstanceView], key: int) -> list[InstanceView]:
    """Return the instances in an order derived from the key, which is stable when one of them
    leaves (rendezvous hashing)."""
    # By number, as hashes of strings differ between processes.
    numbers = {view.name: int(view.name.rpartition("-")[2]) for view in views}
    return sorted(views, key=lambda view: hash((key, numbers[view.name])))
