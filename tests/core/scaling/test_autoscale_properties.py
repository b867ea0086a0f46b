"""The autoscaler keeps its bounds and windows for all signals."""

from hypothesis import given
from hypothesis import strategies as st
from support.autoscaling_loop import ALERT, ALERTS_MISSING, UNKNOWN, Loop

from macroserve.core.scaling.autoscale import (
    CapacityEstimate,
    Limits,
    LoadSignals,
)

anything = st.builds(
    LoadSignals,
    ready=st.integers(0, 20),
    alert=st.sampled_from([None, ALERT]),
    need=st.none()
    | st.builds(
        CapacityEstimate,
        st.floats(0, 100),
        st.integers(1, 40),
        st.integers(1, 40),
        st.booleans(),
        st.booleans(),
    ),
    idle=st.booleans(),
    below_target=st.booleans(),
    unknown=st.sampled_from([None, UNKNOWN]),
    alerts_missing=st.sampled_from([None, ALERTS_MISSING]),
    start_s=st.floats(0, 600),
    response_s=st.floats(0, 600),
)
steps = st.lists(st.tuples(st.floats(0.1, 400), anything), max_size=40)


@given(steps, st.integers(1, 20), st.integers(1, 8), st.integers(0, 12), st.floats(0, 600))
def test_autoscale_under_any_signals_keeps_bounds_doubling_and_windows(
    steps, target, least, spread, down_s
):
    limits = Limits(least, least + spread, 0.0, down_s)
    loop = Loop(target=target, limits=limits)
    last_reason_to_keep = loop.now
    for passed_s, given_ in steps:
        loop.now += passed_s
        before = loop.scaling.target
        after = loop.round(given_)
        assert limits.least <= after <= limits.most
        if before not in range(limits.least, limits.most + 1):
            last_reason_to_keep = loop.now
            continue
        assert after <= 2 * before
        if given_.unknown:
            assert after == before
        if after < before:
            assert not (given_.alerts_missing or (given_.alert and not given_.idle))
            assert loop.now - last_reason_to_keep >= down_s
        has_need = given_.need is not None and given_.need.survivors < before
        if after != before or given_.unknown or not (given_.idle or has_need):
            last_reason_to_keep = loop.now
