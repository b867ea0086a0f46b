"""Alerts fire with the delay of the chart's rules, Prometheus and Alertmanager."""

from pathlib import Path

import pytest
import yaml

from macroserve.core.scaling.signals import ATTAINMENT_LOW, CALLS_FOR_MORE, QUEUES_LATE
from macroserve.sim.autoscaling.alerts import (
    EVALUATION_S,
    FEWEST_REQUESTS,
    FOR_S,
    NOTIFY_S,
    Alerts,
    Ending,
)

CHART = Path(__file__).parents[3] / "helm" / "macroserve"
LATEST_S = EVALUATION_S + FOR_S + NOTIFY_S


def told(endings=(), late_s=(), goals=None, until_s=600.0):
    """Return the times from and to which each alert is known to fire.

    late_s: start and end of the time in which queues are late.
    """
    alerts = Alerts(goals or {"default": 0.9})
    waiting = sorted(endings)
    found = {}
    now = 0.0
    while now < until_s:
        now += EVALUATION_S
        while waiting and waiting[0].at_s <= now:
            alerts.note(waiting.pop(0))
        is_late = bool(late_s) and late_s[0] <= now < late_s[1]
        for name in alerts.evaluate(is_late, now):
            found.setdefault(name, []).append(now)
    return {name: (times_s[0], times_s[-1]) for name, times_s in found.items()}


def endings(rate, share, start_s, end_s, slo_class="default"):
    """Return requests that end at a rate, of which a share attains its targets."""
    num = round(rate * (end_s - start_s))
    return [
        Ending(start_s + i / rate, slo_class, int(share * (i + 1)) > int(share * i))
        for i in range(num)
    ]


def test_delays_are_those_of_the_chart() -> None:
    rules = yaml.safe_load((CHART / "rules" / "alerts.yaml").read_text())["groups"]
    scaling = next(group for group in rules if group["name"] == "macroserve-scaling")
    assert scaling["interval"] == f"{EVALUATION_S:.0f}s"
    known = {rule["alert"]: rule for rule in scaling["rules"]}
    assert {known[name]["for"] for name in CALLS_FOR_MORE} == {f"{FOR_S:.0f}s"}
    assert f">= {FEWEST_REQUESTS}" in known[ATTAINMENT_LOW]["expr"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["monitoring"]["scrapeInterval"] == f"{EVALUATION_S:.0f}s"
    page = (CHART.parents[1] / "docs" / "kubernetes" / "alerts.md").read_text()
    assert f"group_interval: {NOTIFY_S:.0f}s" in page


def test_attainment_alert_begins_after_the_delays_and_ends_a_minute_after_the_misses() -> None:
    spent = [
        *endings(4, 1.0, 0, 200),
        *endings(4, 0.0, 200, 260),
        *endings(4, 1.0, 260, 600),
    ]
    began_s, ended_s = told(spent)[ATTAINMENT_LOW]
    # A tenth of a minute's requests has missed after six seconds.
    assert 206 + LATEST_S - EVALUATION_S <= began_s <= 206 + LATEST_S + EVALUATION_S
    assert 314 <= ended_s <= 314 + EVALUATION_S + NOTIFY_S + EVALUATION_S


@pytest.mark.parametrize(
    ("spent", "fires"),
    [
        pytest.param([], False, id="no requests"),
        pytest.param(endings(4, 0.95, 0, 600), False, id="above the goal"),
        pytest.param(endings(4, 0.8, 0, 600), True, id="below it"),
        pytest.param(endings(0.1, 0.5, 0, 600), True, id="few, for five minutes"),
        pytest.param(endings(0.05, 0.5, 0, 600), False, id="too few"),
        pytest.param(
            [*endings(0.2, 1.0, 0, 480), *endings(0.2, 0.0, 480, 500)],
            False,
            id="few, and the five minutes are well",
        ),
        pytest.param(endings(4, 0.5, 0, 600, "gone"), False, id="class without a goal"),
    ],
)
def test_attainment_alert_of_a_load_is_as_listed(spent, fires) -> None:
    assert (ATTAINMENT_LOW in told(spent)) == fires


def test_each_class_is_held_against_its_own_goal() -> None:
    spent = [*endings(4, 1.0, 0, 300), *endings(1, 0.6, 0, 300, "batch")]
    assert not told(spent, goals={"default": 0.9, "batch": 0.5})
    assert told(spent, goals={"default": 0.9, "batch": 0.7})


@pytest.mark.parametrize(("lasts_s", "fires"), [(60.0, True), (FOR_S - EVALUATION_S, False)])
def test_late_queues_fire_where_they_last(lasts_s, fires) -> None:
    found = told(late_s=(100.0, 100.0 + lasts_s))
    assert (QUEUES_LATE in found) == fires
    if fires:
        began_s, ended_s = found[QUEUES_LATE]
        assert began_s == 100.0 + LATEST_S
        assert 160.0 < ended_s <= 160.0 + EVALUATION_S + NOTIFY_S
