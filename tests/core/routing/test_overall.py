"""The overall scheduler sends requests to the cell with a cached prefix of their prompt."""

from collections import Counter
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed
from support.instance_views import FRESH, NOW, STATUS

from macroserve.core.routing.decision import RouteRequest
from macroserve.core.routing.overall import OverallScheduler
from macroserve.core.routing.prefixes import REPLICA_COST, HeldKey, num_keys
from macroserve.core.status import CellView
from macroserve.core.strategies import STRATEGIES, strategy

KEYS = tuple(range(num_keys(512)))
WITH_PREFIX = replace(FRESH, prefix=KEYS)
SAVED = 448
BY_TURNS = {"ecoserve", "ascendra", "macro"}


def cell(name: str, **fields: object) -> CellView:
    known = {"num_ready": 2, "pool_tokens": 10_000, "prefill_s_per_token": 2**-10}
    return changed(CellView(name, ("x", "y")), **(known | fields))


A, B = cell("a"), cell("b")


def first(
    scheduler: OverallScheduler, *cells: CellView, request: RouteRequest = WITH_PREFIX
) -> str:
    return scheduler.attempts(cells, request, NOW)[0].cell


def note(scheduler: OverallScheduler, cell: CellView, request: RouteRequest) -> None:
    num_tokens = request.request.num_prompt_tokens
    scheduler.note(cell, num_tokens, request.prefix, request.session)


def after(cell: CellView, name: str = "unified") -> OverallScheduler:
    """Return the scheduler after the cell took a request."""
    scheduler = OverallScheduler(strategy(name))
    note(scheduler, cell, WITH_PREFIX)
    return scheduler


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_request_follows_the_one_before_unless_the_strategy_takes_turns(name: str) -> None:
    assert first(after(B, name), A, B) == ("a" if name in BY_TURNS else "b")


@pytest.mark.parametrize("took", [A, B])
def test_request_with_another_beginning_or_none_goes_by_load(took: CellView) -> None:
    other = replace(FRESH, prefix=tuple(-1 - key for key in KEYS))
    for request in (other, FRESH):
        assert first(after(took), A, B, request=request) == "a"


def test_trial_goes_by_load() -> None:
    assert first(after(B), A, B, request=replace(WITH_PREFIX, trial=True)) == "a"


def test_request_that_a_cell_was_only_asked_for_leaves_no_trace() -> None:
    scheduler = OverallScheduler(strategy("unified"))
    busy = cell("a", waiting_prefill_s=0.5)
    assert first(scheduler, busy, B) == "b"
    assert first(scheduler, A, B) == "a"


def test_cell_that_is_gone_is_forgotten() -> None:
    scheduler = after(B)
    scheduler.forget("b")
    assert first(scheduler, A, B) == "a"


HELD = [HeldKey(key, 64) for key in KEYS]
BUSY_A = cell("a", waiting_prefill_s=0.25)


def test_request_follows_the_instance_that_took_its_beginning_to_another_cell() -> None:
    scheduler = after(B)
    scheduler.left("b", HELD)
    assert first(scheduler, A, B) == "a"
    assert first(scheduler, BUSY_A, B) == "b"
    scheduler.arrived("a", HELD)
    assert first(scheduler, BUSY_A, B) == "a"


def test_cell_holds_as_much_as_its_pools() -> None:
    small = cell("b", pool_tokens=128)
    assert first(after(small), cell("a"), cell("b", waiting_prefill_s=0.5)) == "b"
    assert first(after(small), cell("a"), cell("b", waiting_prefill_s=1.0)) == "a"
    empty = cell("b", pool_tokens=0)
    assert first(after(empty), A, empty) == "a"


def busy_with(num_requests: int, share_found: float) -> CellView:
    """Return a busy cell that has begun requests, and found a share of each after the first."""
    found = int(share_found * SAVED) * (num_requests - 1) if num_requests else 0
    counts = {"prompt_tokens": 512 * num_requests, "cached_tokens": found}
    return cell("b", waiting_prefill_s=2.0, **counts)


@pytest.mark.parametrize(("share_found", "expected"), [(1.0, "b"), (0.0, "a")])
def test_cell_is_trusted_for_what_its_caches_find(share_found: float, expected: str) -> None:
    scheduler = OverallScheduler(strategy("unified"))
    for number in range(100):
        note(scheduler, B, WITH_PREFIX)
        scheduler.attempts([A, busy_with(number, share_found)], WITH_PREFIX, NOW)
    assert first(scheduler, A, busy_with(100, share_found)) == expected


def test_cell_whose_counts_began_anew_keeps_what_it_has() -> None:
    scheduler = after(B)
    for num_requests in (1000, 0, 1):
        assert first(scheduler, A, busy_with(num_requests, 1.0)) == "b"


@pytest.mark.parametrize(("wait_s", "expected"), [(0.5, "b"), (4.0, "a")])
def test_stream_that_goes_on_goes_where_its_prompt_is_if_that_is_in_time(
    wait_s: float, expected: str
) -> None:
    """A stream has the whole target again, and must not get its former instance."""
    streamed = replace(FRESH.request, arrival_s=NOW - 60.0, num_streamed_tokens=9)
    going_on = replace(WITH_PREFIX, request=streamed, exclude=frozenset("x"))
    busy = cell("b", waiting_prefill_s=wait_s)
    assert first(after(B), cell("a", waiting_prefill_s=0.25), busy, request=going_on) == expected


# -- one popular beginning

OWN_S = 512 * STATUS.prefill_s_per_token


@pytest.mark.parametrize("num_keys_", [1, len(KEYS)])
@pytest.mark.parametrize("num_requests", [10, 40, 160])
def test_burst_with_a_popular_beginning_makes_no_cell_wait_longer_than_it_is_worth(
    num_requests: int, num_keys_: int
) -> None:
    scheduler, waits = OverallScheduler(strategy("unified")), Counter(a=0.0, b=0.0)
    request = replace(WITH_PREFIX, prefix=KEYS[:num_keys_])
    saved_s = 64 * num_keys_ * STATUS.prefill_s_per_token
    seen = set[str]()
    for _ in range(num_requests):
        cells = [cell(name, waiting_prefill_s=wait_s) for name, wait_s in waits.items()]
        name = first(scheduler, *cells, request=request)
        note(scheduler, cells["ab".index(name)], request)
        waits[name] += OWN_S - (saved_s if name in seen else 0.0)
        seen.add(name)
    assert abs(waits["a"] - waits["b"]) / 2 <= (1 + REPLICA_COST) * saved_s + OWN_S


def test_popular_short_beginning_fills_no_cell_while_the_other_decodes_nothing() -> None:
    """Requests come so slowly that none waits, and respond so long that all decode."""
    scheduler, running = OverallScheduler(strategy("unified")), Counter(a=0, b=0)
    request = replace(WITH_PREFIX, prefix=KEYS[:1])
    for _ in range(200):
        cells = [
            cell(name, num_running=number, decode_step_s=0.0002 * number)
            for name, number in running.items()
        ]
        name = first(scheduler, *cells, request=request)
        note(scheduler, cells["ab".index(name)], request)
        running[name] += 1
    assert min(running.values()) >= 90


IN_SESSION = replace(FRESH, session=7)
BUSY = {"waiting_prefill_s": 100.0}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_session_goes_to_its_cell_unless_the_strategy_takes_turns(name: str) -> None:
    scheduler = OverallScheduler(strategy(name))
    note(scheduler, B, IN_SESSION)
    home = "a" if name in BY_TURNS else "b"
    assert first(scheduler, A, cell("b", num_running=9), request=IN_SESSION) == home
    assert first(scheduler, A, B, request=replace(FRESH, session=8)) == "a"
    assert first(scheduler, A, B, request=FRESH) == "a"


def test_session_leaves_a_cell_where_it_would_be_late() -> None:
    scheduler = OverallScheduler(strategy("unified"))
    note(scheduler, B, IN_SESSION)
    assert first(scheduler, A, cell("b", **BUSY), request=IN_SESSION) == "a"
    assert first(scheduler, cell("a", **BUSY), cell("b", **BUSY), request=IN_SESSION) == "b"
    assert first(scheduler, A, request=IN_SESSION) == "a"


def test_session_goes_before_the_beginning_of_a_prompt() -> None:
    scheduler = after(B)
    both = replace(WITH_PREFIX, session=7)
    note(scheduler, A, IN_SESSION)
    assert first(scheduler, B, A, request=both) == "a"
    assert first(scheduler, B, A, request=WITH_PREFIX) == "b"


def test_session_before_any_cell_is_ready_is_asked_for_everywhere() -> None:
    scheduler = OverallScheduler(strategy("unified"))
    unready = cell("a", num_ready=0)
    note(scheduler, unready, IN_SESSION)
    assert scheduler.attempts((unready,), IN_SESSION, NOW) == [("a", True)]
