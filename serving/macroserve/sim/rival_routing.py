"""Rules by which other routers choose an instance, to compare with; nothing is served by them."""

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
"""Requests of an instance at most, as a multiple of the mean (consistent hashing with bounded
loads, KubeAI's default)."""
STICKY_S = 15.0
"""Predicted seconds to the first token up to which a request stays where its prompt begins."""


class Routing(StrEnum):
    """A routing rule chooses the instance of each request."""

    OWN = "own"
    """The strategy's own rule, as it is served."""
    ROUND_ROBIN = "round robin"
    LEAST_LOAD = "least load"
    """The fewest requests, whatever is cached."""
    SESSION = "session affinity"
    """Equal prompts go to one instance, by a hash."""
    BOUNDED_HASH = "consistent hashing, bounded load"
    """Prompts that begin alike go to one instance, by a hash of their first tokens, or to the next
    one that has not too many requests."""
    STICKY = "sticky until 15 s"
    """A request goes where most of its prompt is cached, unless it would wait for longer there."""


class RivalRouter(CellRouter):
    """The router of a single cell whose instances are chosen by another rule."""

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
    """Return the instances in an order that follows from the key; where one leaves, the others keep
    theirs (rendezvous hashing)."""
    # By number, since texts have other hashes in each process.
    numbers = {view.name: int(view.name.rpartition("-")[2]) for view in views}
    return sorted(views, key=lambda view: hash((key, numbers[view.name])))
