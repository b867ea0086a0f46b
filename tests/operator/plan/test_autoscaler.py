"""The autoscaler keeps its state between reconciles and changes the target only with a reason."""

from datetime import timedelta

import msgspec
import pytest
from prometheus_client import REGISTRY
from support.reconcile_results import NOW, cell, manifest, observation, pod
from support.scaled_deployment import (
    AUTOSCALED,
    COEFFICIENTS,
    DOWN_S,
    LLAMA,
    LOW,
    World,
    load_of,
    told,
    wanted,
)

from macroserve.api.messages import Report
from macroserve.core.scaling.autoscale import PATIENCE_S, SETTLE_S, START_S
from macroserve.core.scaling.signals import STALE_S
from macroserve.operator.observe.target import Change
from macroserve.operator.plan import autoscaler, load_signals
from macroserve.operator.plan.autoscaler import METRICS_MISSING

MEASURED = {"startup": {"p50Seconds": 90, "p90Seconds": 400, "samples": 5, "starts": []}}


@pytest.fixture
def world():
    return World()


# -- without spec.autoscaling


async def test_target_without_autoscaling_is_the_spec_and_asks_for_no_load():
    world = World(manifest(instances=5))
    world.load = None
    first = await world.reconcile(report=None)
    assert (first.desired_instances, first.able, first.metrics_available) == (5, True, None)
    assert first.change is None, "the first number is no change"
    assert not world.oracle.asked
    world.alert()
    assert (await world.reconcile()).desired_instances == 5


async def test_target_without_autoscaling_changes_with_the_spec():
    world = World(manifest(instances=5))
    await world.reconcile()
    world.manifest = manifest(instances=2)
    target = await world.reconcile()
    reason = "spec.instances is 2."
    assert target.change == Change(world.now, 5, 2, reason)
    assert (await world.reconcile()).change is None


async def test_target_after_autoscaling_is_removed_is_the_spec(world):
    world.status = {"targetInstances": 7}
    assert (await world.reconcile()).desired_instances == 7
    world.manifest = manifest(instances=3)
    assert (await world.reconcile()).change.to_instances == 3


# -- with it


async def test_target_starts_from_the_spec_and_goes_on_from_the_status(world):
    assert (await world.reconcile()).desired_instances == 3
    world.status = {"targetInstances": 6}
    world.start()
    assert (await world.reconcile()).desired_instances == 6


async def test_spec_instances_with_a_target_has_no_effect(world):
    await world.reconcile()
    world.manifest = manifest(instances=7, autoscaling={"minInstances": 2, "maxInstances": 8})
    assert (await world.reconcile()).desired_instances == 3


async def test_target_follows_new_bounds_at_once(world):
    await world.reconcile()
    world.manifest = manifest(instances=5, autoscaling={"minInstances": 5, "maxInstances": 8})
    target = await world.reconcile()
    assert (target.desired_instances, target.change.from_instances) == (5, 3)


@pytest.mark.parametrize("name", [LOW, "MacroserveQueuesLate"])
async def test_alert_adds_an_instance_in_the_next_reconcile(world, name):
    await world.reconcile()
    world.oracle.forgotten = 0
    world.alert(name)
    assert world.woken == [LLAMA]
    target = await world.reconcile(0.1)
    assert (target.desired_instances, target.change.from_instances) == (4, 3)
    assert name in target.reason
    assert target.change == Change(world.now, 3, 4, target.reason)
    assert world.oracle.forgotten, "what was simulated for three says nothing of four"


async def test_second_alert_adds_no_instance(world):
    await world.reconcile()
    for name in ("MacroserveUnderused", METRICS_MISSING, "Else"):
        world.alert(name)
    assert (await world.reconcile()).desired_instances == 3


async def test_resolved_alert_adds_no_instance(world):
    await world.reconcile()
    world.alert()
    world.alert(firing=False)
    assert (await world.reconcile()).desired_instances == 3
    world.alert()
    world.now += timedelta(seconds=121)
    assert (await world.reconcile()).desired_instances == 3, "it was not repeated"


async def test_alert_that_persists_adds_an_instance_after_the_settling_time(world):
    await world.reconcile()
    world.alert()
    assert (await world.reconcile()).desired_instances == 4
    world.ready = 4
    world.start()  # after a restart the time counts from when all are seen to serve
    world.alert()
    assert (await world.reconcile(START_S)).desired_instances == 4
    world.alert()
    assert (await world.reconcile(SETTLE_S)).desired_instances == 4, "a response takes 10 s"
    world.alert()
    assert (await world.reconcile(10.0)).desired_instances == 5


@pytest.mark.parametrize(("measured", "start_s"), [({}, START_S), (MEASURED, 400.0)])
async def test_alert_waits_for_added_instances_as_long_as_a_start_takes(world, measured, start_s):
    world.status = dict(measured)
    await world.reconcile()
    world.alert()
    assert (await world.reconcile()).desired_instances == 4
    waited_s = 0.0
    while (await world.reconcile(10.0)).desired_instances == 4:
        world.alert()
        waited_s += 10.0
    assert start_s + PATIENCE_S - 10.0 <= waited_s <= start_s + PATIENCE_S


async def test_load_is_forecast_for_the_end_of_a_start(world, monkeypatch):
    asked = []
    monkeypatch.setattr(autoscaler, "need", lambda *_, start_s, **__: asked.append(start_s))
    for status in ({}, MEASURED):
        world.status = dict(status)
        await world.reconcile()
        world.oracle.simulate()
    assert asked == [START_S, 400.0]


async def test_target_follows_the_simulation(world):
    await world.reconcile()
    world.oracle.answer = wanted(6)
    assert (await world.reconcile()).desired_instances == 6
    world.oracle.answer = wanted(1, 4)
    for _ in range(DOWN_S // 5 - 1):
        target = await world.reconcile()
        assert (target.desired_instances, target.able) == (6, False)
    assert (await world.reconcile()).desired_instances == 4


async def test_idle_macroinstance_shrinks_to_the_minimum_without_a_simulation(world):
    world.load = load_of(0)
    for _ in range(DOWN_S // 5):
        assert (await world.reconcile()).desired_instances == 3
    assert (await world.reconcile()).desired_instances == 2
    assert not world.oracle.asked


@pytest.mark.parametrize("field", ["num_waiting", "num_running"])
async def test_macroinstance_with_running_requests_is_not_idle(world, field):
    world.load = load_of(0)
    world.report = Report((cell("cell-0", 0, **{field: 1}),))
    for _ in range(2 * DOWN_S // 5):
        assert (await world.reconcile()).desired_instances == 3


# -- what is not known


async def every_hold(world, **differs):
    """The target must stay for as long as it is so, even after the window, and it must be told."""
    world.oracle.answer = wanted(1, 2)
    for _ in range(3 * DOWN_S // 5):
        target = await world.reconcile(**differs)
        assert target.desired_instances == 3
    assert (target.able, target.metrics_available) == (False, False)
    return target.reason


async def test_target_without_an_answer_of_the_head_holds_even_under_an_alert(world):
    world.load = None
    world.alert()
    assert "head does not report" in await every_hold(world)
    world.load = load_of()
    assert "head does not answer" in await every_hold(world, report=None)


async def test_target_with_an_outdated_load_holds(world):
    world.load = load_of(num_buckets=0)
    assert "not been measured yet" in await every_hold(world)
    world.load = load_of(age_s=STALE_S + 1)
    assert "too old" in await every_hold(world)
    world.load = load_of(0, age_s=STALE_S + 1)
    await every_hold(world)


async def test_target_while_alertmanager_is_silent_holds(world):
    world.start()
    assert "Alertmanager" in await every_hold(world, heard=False)
    world.load = load_of(0)
    await every_hold(world, heard=False)


async def test_target_without_metrics_holds(world):
    for _ in range(3 * DOWN_S // 5):
        world.alert(METRICS_MISSING)
        world.oracle.answer = wanted(1, 2)
        target = await world.reconcile()
        assert (target.desired_instances, target.metrics_available) == (3, False)
    assert METRICS_MISSING in target.reason


async def test_target_while_alertmanager_is_silent_can_grow(world):
    world.start()
    world.oracle.answer = wanted(5)
    assert (await world.reconcile(heard=False)).desired_instances == 5


async def test_scale_down_after_metrics_return_waits_a_whole_window(world):
    world.oracle.answer = wanted(1, 2)
    for _ in range(DOWN_S // 5 - 1):
        await world.reconcile()
    world.load = None
    await world.reconcile()
    world.load = load_of()
    for _ in range(DOWN_S // 5 - 1):
        target = await world.reconcile()
        assert (target.desired_instances, target.metrics_available) == (3, True)
    assert [(await world.reconcile()).desired_instances for _ in range(2)][-1] == 2


async def test_restarted_autoscaler_waits_for_a_whole_window(world):
    world.oracle.answer = wanted(1, 2)
    for _ in range(DOWN_S // 5 - 1):
        await world.reconcile()
    world.start()
    for _ in range(DOWN_S // 5):
        assert (await world.reconcile()).desired_instances == 3
    assert [(await world.reconcile()).desired_instances for _ in range(2)][-1] == 2


async def test_misses_of_the_last_minute_prevent_scale_down(world):
    world.oracle.answer = wanted(1, 2)
    world.report = Report((told(cell("cell-0", 0, 1, 2, finished=100, attained=89)),))
    for _ in range(2 * DOWN_S // 5):
        target = await world.reconcile()
        assert (target.desired_instances, target.metrics_available) == (3, True)
    world.report = Report((told(cell("cell-0", 0, 1, 2, finished=100, attained=90)),))
    for _ in range(2 * DOWN_S // 5):
        target = await world.reconcile()
    assert target.desired_instances == 2


async def test_few_misses_do_not_prevent_scale_down(world):
    world.oracle.answer = wanted(1, 2)
    world.report = Report((told(cell("cell-0", 0, 1, 2, finished=9, attained=0)),))
    for _ in range(2 * DOWN_S // 5):
        target = await world.reconcile()
    assert target.desired_instances == 2


async def test_target_after_a_failed_status_write_is_decided_anew(world):
    await world.reconcile()
    before = world.status
    world.alert()
    assert (await world.reconcile()).desired_instances == 4
    world.status = before
    target = await world.reconcile()
    assert target.change.from_instances == 3
    assert target.desired_instances == 4, "decided anew, not added to"
    world.status = before
    world.alert(firing=False)
    target = await world.reconcile()
    assert (target.desired_instances, target.change) == (3, None)


# -- what is simulated


async def test_simulation_has_the_settings_of_the_deployment(world):
    await world.reconcile()
    need = world.oracle.simulate().need
    assert need.requests_per_s == pytest.approx(10.0)
    assert need.enough == 3 and 2 <= need.survivors <= 3
    told = msgspec.structs.replace(world.load, max_num_seqs=1024, max_batch_tokens=8192)
    found = load_signals.design(observation(manifest=AUTOSCALED, report=world.report), told)
    assert found is not None
    config, spec = found.config, AUTOSCALED.spec
    assert (config.slo, config.strategy.name) == (AUTOSCALED.slo, "unified")
    assert (config.num_blocks, config.block_size) == (1000, 32)
    assert (config.max_num_seqs, config.max_batch_tokens) == (1024, 8192), "as instances tell"
    assert config.max_model_len == spec.model.max_model_len
    assert found.latency.coefficients == COEFFICIENTS
    assert found.max_cell == spec.mitosis.upper_bound
    assert found.high_priority_ratio == 0.0
    pooled = observation(
        manifest=manifest(priority={"highPriorityRatio": 0.25}), report=world.report
    )
    found = load_signals.design(pooled, world.load)
    assert found is not None and found.high_priority_ratio == 0.25


async def test_simulation_without_an_instance_report_does_not_run(world):
    await world.reconcile()
    silent = Report((cell("cell-0", 0, 1, 2),))
    observed = observation(manifest=AUTOSCALED, report=silent)
    assert load_signals.design(observed, world.load) is None
    observed = observation(manifest=AUTOSCALED, report=world.report)
    for field in ("coefficients", "model", "device"):
        assert load_signals.design(observed, load_of(**{field: None})) is None
    world.load = load_of(coefficients=None)
    await world.reconcile()
    assert world.oracle.simulate() is None


def test_pod_that_drains_or_fails_does_not_count_as_ready():
    pods = (
        pod(0),
        pod(1, ready=False),
        pod(2, deleting=True),
        pod(3, draining_since=NOW),
        pod(4, failed=True),
        pod(5),
    )
    assert load_signals.num_ready(observation(pods=pods)) == 2


# -- what is told


async def test_target_and_ready_are_metrics_until_it_is_gone(world):
    def value(name):
        labels = {"namespace": "team", "macroinstance": "llama"}
        return REGISTRY.get_sample_value(f"macroserve_operator_{name}", labels)

    world.ready = 2
    await world.reconcile()
    assert (value("target_instances"), value("ready_instances")) == (3.0, 2.0)
    world.autoscaler.forget(LLAMA)
    assert (value("target_instances"), value("ready_instances")) == (None, None)
    world.autoscaler.forget(LLAMA)


async def test_deleted_macroinstance_leaves_no_autoscaler_state(world):
    await world.reconcile()
    world.alert()
    world.autoscaler.forget(LLAMA)
    world.status = {}
    assert (await world.reconcile()).desired_instances == 3, "one of that name that is made anew"


async def test_scaling_reason_without_a_change_is_stable(world):
    """The reason is part of a condition, and a status that stays equal is not written."""
    world.oracle.answer = wanted(3)
    for load in (world.load, None, load_of(num_buckets=0), load_of(age_s=100.0)):
        world.load = load
        first, second = await world.reconcile(), await world.reconcile()
        assert first.reason == second.reason
