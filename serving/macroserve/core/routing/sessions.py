"""Affinity of a session's requests to the instance and cell that got its last one."""

from collections import OrderedDict
from collections.abc import Sequence

from macroserve.core.routing.constraints import Demand, first_token_s
from macroserve.core.status import InstanceView

MAX_SESSIONS = 1 << 16
"""Maximum sessions of a record; beyond it, the least recently used are forgotten."""


class SessionRecord:
    """Holder, an instance or a cell, of each session's last request."""

    def __init__(self) -> None:
        self._holders: OrderedDict[int, str] = OrderedDict()

    def note(self, session: int | None, holder: str) -> None:
        if session is None:
            return
        self._holders[session] = holder
        self._holders.move_to_end(session)
        if len(self._holders) > MAX_SESSIONS:
            self._holders.popitem(last=False)

    def holder(self, session: int | None) -> str | None:
        """Return the name of the session's holder, which may have left; None for a new session."""
        return None if session is None else self._holders.get(session)


def with_session(
    chosen: InstanceView, candidates: Sequence[InstanceView], holder: str, demand: Demand
) -> InstanceView | None:
    """Return the session's instance if it is in the chosen one's pool and its first token is in
    time or no later than the chosen one's; else None."""
    home = next((view for view in candidates if view.name == holder), None)
    if home is None or home.pool is not chosen.pool:
        return None
    latest_s = max(first_token_s(chosen, demand), demand.ttft_left_s)
    return home if first_token_s(home, demand) <= latest_s else None
