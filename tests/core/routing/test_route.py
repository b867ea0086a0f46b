"""Decision tables list the instance that each strategy chooses."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.instance_views import (
    BUSIER,
    BUSY,
    FRESH,
    NOW,
    OFFLOADED,
    PREFILLING,
    aged,
    hp,
    last_decision,
    lp,
    routed,
)

from macroserve.core.routing.decision import RouteDecision, RouteReason, RouteRequest
from macroserve.core.routing.policies import ascendra_route, unified_route
from macroserve.core.routing.route import route
from macroserve.core.status import InstanceStatus, InstanceView, Pool
from macroserve.core.strategies import STRATEGIES, strategy


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    "views",
    [
        [],
        [lp("a", draining=True), hp("b", draining=True)],
        [lp("x"), hp("y")],
        [lp("x"), lp("b", draining=True)],
    ],
)
def test_router_with_no_available_instance_returns_no_instance(
    name: str, views: list[InstanceView]
) -> None:
    request = replace(FRESH, exclude=frozenset("xy"))
    assert route(strategy(name), views, None, request, NOW) == RouteDecision(
        None, RouteReason.NO_INSTANCE, math.inf, check=None, late=False
    )


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ([lp("a", waiting_tokens=10), lp("b", waiting_tokens=9)], "b"),
        ([lp("a", remaining_tokens=9), lp("b", waiting_tokens=5, remaining_tokens=5)], "a"),
        ([lp("a", remaining_tokens=1), lp("b")], "b"),
        ([lp("a"), msgspec.structs.replace(lp("b"), in_flight_tokens=1)], "a"),
        ([msgspec.structs.replace(lp("a"), in_flight_tokens=1), lp("b")], "b"),
        ([lp("a"), lp("b")], "a"),
        # Fewer requests count before fewer tokens.
        ([lp("a", num_running=2), lp("b", num_running=1, remaining_tokens=99)], "b"),
        ([lp("a", num_waiting=1), lp("b", num_waiting=1, num_running=1)], "a"),
        ([lp("a", in_flight=1), lp("b", num_running=2)], "a"),
    ],
)
def test_vllm_route_goes_to_the_least_load(views: list[InstanceView], expected: str) -> None:
    assert routed("vllm", views) == (expected, RouteReason.LEAST_LOAD)


@pytest.mark.parametrize(
    ("views", "last", "expected", "reason"),
    [
        # The last routed instance keeps its turn for as long as it satisfies.
        ([lp("a"), lp("b"), lp("c")], "b", "b", RouteReason.SATISFIES),
        ([lp("a"), lp("b", **BUSY), lp("c")], "b", "c", RouteReason.SATISFIES),
        ([lp("a"), lp("b", **BUSY), lp("c", **BUSY)], "b", "a", RouteReason.SATISFIES),
        ([lp("a"), lp("b")], "gone", "a", RouteReason.SATISFIES),
        ([lp("a"), lp("b", draining=True), lp("c")], "b", "c", RouteReason.SATISFIES),
        ([lp("a", **BUSIER), lp("b", **BUSY)], "a", "b", RouteReason.LEAST_WAIT),
        ([lp("a", **BUSY), lp("b", **BUSY)], "b", "b", RouteReason.LEAST_WAIT),
        # The paper's slack is the mean.
        ([lp("a", saved_tpot_mean_s=1.0, saved_tpot_p10_s=0.0)], None, "a", RouteReason.SATISFIES),
        ([lp("a", saved_tpot_mean_s=0.0, saved_tpot_p10_s=1.0)], None, "a", RouteReason.LEAST_WAIT),
        # Pools are nothing to it.
        ([lp("a", **BUSY), hp("b")], "a", "b", RouteReason.SATISFIES),
    ],
)
def test_ecoserve_route_keeps_an_instance_while_it_satisfies(
    views: list[InstanceView], last: str | None, expected: str, reason: RouteReason
) -> None:
    assert routed("ecoserve", views, last=last) == (expected, reason)


NO_TICKET = [
    hp("h", num_waiting=1),
    hp("h", in_flight=1),
    hp("h", num_running=32),
    hp("h", free_blocks=500),
]


@pytest.mark.parametrize(
    ("views", "request_", "last", "expected", "reason"),
    [
        # LP instances take turns, whatever their load.
        ([lp("a"), lp("b")], FRESH, "a", "b", RouteReason.ROUND_ROBIN),
        ([lp("a", **BUSIER), lp("b")], FRESH, "b", "a", RouteReason.ROUND_ROBIN),
        ([lp("a")], FRESH, "a", "a", RouteReason.ROUND_ROBIN),
        *[
            ([lp("a"), view, lp("b")], FRESH, "a", "b", RouteReason.ROUND_ROBIN)
            for view in NO_TICKET
        ],
        # An idle HP instance asks for a new request.
        ([lp("a"), hp("h")], FRESH, None, "h", RouteReason.TICKET),
        ([lp("a"), hp("h", num_running=31, free_blocks=501)], FRESH, None, "h", RouteReason.TICKET),
        ([lp("a"), hp("g", num_waiting=1), hp("h")], FRESH, None, "h", RouteReason.TICKET),
        # What an LP instance handed back goes to HP, whatever HP's load, while there is one.
        *[([lp("a"), view], OFFLOADED, None, "h", RouteReason.URGENT) for view in NO_TICKET],
        ([lp("a"), hp("g", **BUSIER), hp("h", **BUSY)], OFFLOADED, None, "h", RouteReason.URGENT),
        ([lp("a"), hp("h", draining=True)], OFFLOADED, None, "a", RouteReason.ROUND_ROBIN),
        # A request that no instance handed back takes its turn, however little time is left.
        ([lp("a"), hp("h", in_flight=1)], aged(1.25), None, "a", RouteReason.ROUND_ROBIN),
        # Without LP instances the others stand in.
        (
            [hp("g", num_waiting=1), hp("h", num_waiting=1)],
            FRESH,
            "g",
            "h",
            RouteReason.ROUND_ROBIN,
        ),
    ],
)
def test_ascendra_route_follows_pools_tickets_and_turns(
    views: list[InstanceView],
    request_: RouteRequest,
    last: str | None,
    expected: str,
    reason: RouteReason,
) -> None:
    assert routed("ascendra", views, request_, last) == (expected, reason)


@pytest.mark.parametrize(
    ("views", "request_", "last", "expected", "reason"),
    [
        # The last LP instance keeps its turn for as long as it satisfies.
        ([lp("a"), lp("b"), NO_TICKET[0]], FRESH, "b", "b", RouteReason.SATISFIES),
        ([lp("a"), lp("b", **BUSY), NO_TICKET[0]], FRESH, "b", "a", RouteReason.SATISFIES),
        ([lp("a", **BUSIER), lp("b", **BUSY)], FRESH, "a", "b", RouteReason.LEAST_WAIT),
        ([lp("a"), hp("h")], FRESH, "a", "h", RouteReason.TICKET),
        # A ticket counts where the constraints hold. The slack is the mean.
        ([lp("a"), hp("h", saved_tpot_mean_s=0.25)], FRESH, "a", "a", RouteReason.SATISFIES),
        ([lp("a"), hp("h", saved_tpot_p10_s=0.25)], FRESH, "a", "h", RouteReason.TICKET),
        ([lp("a"), hp("h", saved_tpot_mean_s=0.25)], OFFLOADED, "a", "h", RouteReason.URGENT),
        ([lp("a"), NO_TICKET[2]], OFFLOADED, "a", "h", RouteReason.URGENT),
        ([lp("a"), lp("b")], OFFLOADED, "b", "b", RouteReason.SATISFIES),
    ],
)
def test_macro_route_activates_lp_instances_in_turn_beside_the_hp_pool(
    views: list[InstanceView],
    request_: RouteRequest,
    last: str | None,
    expected: str,
    reason: RouteReason,
) -> None:
    assert routed("macro", views, request_, last) == (expected, reason)


@pytest.mark.parametrize(
    ("views", "request_", "last", "expected", "reason"),
    [
        ([lp("a"), lp("b"), hp("h", in_flight=1)], FRESH, "b", "b", RouteReason.LEAST_LOAD),
        ([lp("a"), lp("b", **BUSY), hp("h", in_flight=1)], FRESH, "b", "a", RouteReason.LEAST_LOAD),
        # One that could take it is passed over for one where it comes sooner.
        (
            [lp("a"), lp("b", waiting_prefill_s=0.1), hp("h", in_flight=1)],
            FRESH,
            "b",
            "a",
            RouteReason.LEAST_LOAD,
        ),
        # Tickets are honoured only where the constraints hold. The slack is the tenth percentile.
        ([lp("a"), hp("h")], FRESH, None, "h", RouteReason.TICKET),
        ([lp("a"), hp("h", saved_tpot_p10_s=0.25)], FRESH, None, "a", RouteReason.LEAST_LOAD),
        (
            [lp("a"), hp("h", saved_tpot_mean_s=9.0, saved_tpot_p10_s=0.25)],
            FRESH,
            None,
            "a",
            RouteReason.LEAST_LOAD,
        ),
        (
            [lp("a"), hp("h", num_blocks=60, free_blocks=39)],
            FRESH,
            None,
            "a",
            RouteReason.LEAST_LOAD,
        ),
        ([lp("a"), hp("h", **BUSIER)], OFFLOADED, None, "h", RouteReason.URGENT),
        # Only HP still makes the target.
        ([lp("a", **BUSY), hp("h", num_waiting=1)], FRESH, None, "h", RouteReason.URGENT),
        # Nobody makes it: HP is kept for those that can be saved.
        ([lp("a"), hp("h", in_flight=1)], aged(1.75), None, "a", RouteReason.LEAST_LOAD),
        # HP that comes sooner, but too late as well, is left to those that can be saved.
        (
            [lp("a", **BUSIER), lp("b", **BUSY), hp("h", waiting_prefill_s=1.6, num_waiting=1)],
            FRESH,
            None,
            "b",
            RouteReason.LEAST_LOAD,
        ),
        # Fewest requests first, however soon the first token comes elsewhere.
        (
            [lp("a", num_running=2), lp("b", num_running=1, waiting_prefill_s=1.25)],
            FRESH,
            None,
            "b",
            RouteReason.LEAST_LOAD,
        ),
        (
            [lp("a", in_flight=1), lp("b", num_waiting=1, num_running=1), lp("c", **BUSY)],
            FRESH,
            None,
            "a",
            RouteReason.LEAST_LOAD,
        ),
        # But for those where it would come too late, while nobody is late already.
        (
            [lp("a", num_running=2), lp("b", **PREFILLING)],
            FRESH,
            None,
            "a",
            RouteReason.LEAST_LOAD,
        ),
        (
            [
                lp("a", num_running=2, oldest_wait_s=2.1),
                lp("b", **PREFILLING),
            ],
            FRESH,
            None,
            "b",
            RouteReason.LEAST_LOAD,
        ),
        (
            [
                lp("a", num_running=2, oldest_wait_s=1.9),
                lp("b", **PREFILLING),
                lp("c", num_running=1, decode_step_s=0.095),
                hp("h", in_flight=1),
            ],
            FRESH,
            None,
            "a",
            RouteReason.LEAST_LOAD,
        ),
        # Of as many: where decoding fills half of every TPOT target, 2.25 s become 4.5, above 3.5.
        (
            [lp("a", decode_step_s=0.05, **BUSY), lp("b", **BUSIER | {"num_waiting": 3})],
            FRESH,
            None,
            "b",
            RouteReason.LEAST_LOAD,
        ),
        (
            [
                lp("a", decode_step_s=9.0, **BUSIER | {"num_waiting": 3}),
                lp("b", decode_step_s=0.095, **BUSY),
            ],
            FRESH,
            None,
            "b",
            RouteReason.LEAST_LOAD,
        ),
    ],
)
def test_unified_route_balances_requests_and_rescues_urgent_ones(
    views: list[InstanceView],
    request_: RouteRequest,
    last: str | None,
    expected: str,
    reason: RouteReason,
) -> None:
    assert routed("unified", views, request_, last) == (expected, reason)


@pytest.mark.parametrize(
    ("request_", "views", "late"),
    [
        (FRESH, [lp("a", waiting_prefill_s=1.5)], False),
        (FRESH, [lp("a", waiting_prefill_s=1.51)], True),
        (FRESH, [lp("a", waiting_prefill_s=9.0), lp("b", waiting_prefill_s=1.5)], False),
        (FRESH, [lp("a", waiting_prefill_s=9.0), lp("b", draining=True)], True),
        (aged(1.5), [lp("a")], False),
        (aged(1.51), [lp("a")], True),
        (
            replace(FRESH, request=replace(FRESH.request, num_streamed_tokens=1)),
            [lp("a", waiting_prefill_s=9.0)],
            False,
        ),
    ],
)
@pytest.mark.parametrize("name", STRATEGIES)
def test_route_is_late_only_if_no_instance_meets_the_target(
    name: str, request_: RouteRequest, views: list[InstanceView], late: bool
) -> None:
    assert route(strategy(name), views, None, request_, NOW).late is late


def test_route_reports_wait_and_constraints_of_the_chosen_instance() -> None:
    views = [lp("a", **BUSY), lp("b", **BUSIER)]
    last = last_decision("ascendra", "a")
    decision = route(strategy("ascendra"), views, last, FRESH, NOW)
    assert (decision.instance, decision.predicted_wait_s, decision.satisfied) == ("b", 3.5, False)
    decision = route(strategy("ascendra"), [lp("a"), lp("b")], last, FRESH, NOW)
    assert (decision.instance, decision.predicted_wait_s, decision.satisfied) == ("b", 0.5, True)


seconds = st.floats(0, 5)
statuses = st.builds(
    InstanceStatus,
    seq=st.just(1),
    num_waiting=st.integers(0, 2),
    num_running=st.integers(0, 64),
    waiting_prefill_s=seconds,
    phase_prefill_s=seconds,
    saved_tpot_mean_s=st.none() | seconds,
    saved_tpot_p10_s=st.none() | seconds,
    decode_step_s=st.floats(0, 0.2),
    prefill_s_per_token=st.floats(0, 0.01),
    num_blocks=st.just(100),
    free_blocks=st.integers(0, 100),
    draining=st.booleans(),
)


@st.composite
def cells(draw: st.DrawFn) -> list[InstanceView]:
    return [
        InstanceView(f"i{i}", draw(st.sampled_from(Pool)), draw(statuses), NOW, 64, draw(flights))
        for i in range(draw(st.integers(0, 6)))
    ]


flights = st.integers(0, 1)
requests = st.builds(
    RouteRequest,
    request=st.builds(aged, st.floats(0, 3)).map(lambda request: request.request),
    num_output_tokens=st.integers(1, 1000),
    offloaded=st.booleans(),
    exclude=st.frozensets(st.sampled_from(["i0", "i1", "i2"])),
)


@given(st.sampled_from(list(STRATEGIES.values())), cells(), requests, st.data())
def test_route_of_any_strategy_returns_a_valid_decision(strategy, views, request, data) -> None:
    last = data.draw(st.sampled_from([None, "gone", *(view.name for view in views)]))
    before = last_decision(strategy.name, last)
    decision = route(strategy, views, before, request, NOW)
    allowed = {
        view.name: view
        for view in views
        if not view.status.draining and view.name not in request.exclude
    }
    assert (decision.instance is None) == (not allowed)
    if decision.instance is None:
        return
    chosen = allowed[decision.instance]
    has_both = {view.pool for view in allowed.values()} == set(Pool)
    if strategy.route in (ascendra_route, unified_route) and has_both:
        to_high = decision.reason in (RouteReason.TICKET, RouteReason.URGENT)
        assert (chosen.pool is Pool.HP) == to_high
        assert not request.offloaded or to_high
    if decision.late:
        assert decision.predicted_wait_s > request.ttft_left_s(NOW)
    assert decision == route(strategy, views, before, request, NOW)
