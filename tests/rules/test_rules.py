"""Prometheus' own tester runs the recording and alert rules."""

from pathlib import Path

import pytest
import yaml
from support.promtool import promtool

pytestmark = pytest.mark.integration
RULES = sorted((Path(__file__).parents[2] / "helm" / "macroserve" / "rules").glob("*.yaml"))
LLAMA = 'namespace="ns",macroinstance="llama"'
EVERY_S = 5

LOW, LATE = "MacroserveSLOAttainmentLow", "MacroserveQueuesLate"
MISSING, UNDERUSED = "MacroserveMetricsMissing", "MacroserveUnderused"
NONE_READY, NOT_READY = "MacroserveNoInstanceReady", "MacroserveInstancesNotReady"
FAILING, NO_OPERATOR = "MacroserveRequestsFailing", "MacroserveOperatorMissing"


def steady(value):
    """Return a series with one value for as long as any test lasts."""
    return f"{value}+0x500"


def growing(per_minute, minutes=42):
    """Return a counter with so many more each minute."""
    return f"0+{per_minute * EVERY_S / 60}x{minutes * 60 // EVERY_S}"


def then(*stretches):
    """Return a counter that grows by ``per_minute`` for ``minutes``, stretch by stretch."""
    values, at = [], 0.0
    for per_minute, minutes in stretches:
        step = per_minute * EVERY_S / 60
        count = round(minutes * 60 / EVERY_S)
        values.append(f"{at + step}+{step}x{count - 1}")
        at += step * count
    return " ".join(["0", *values])


def requests(
    ok,
    attained=None,
    failed="0x500",
    late="0x500",
    cancelled="0x500",
    ingress="a",
    slo_class="default",
    goal=0.9,
):
    """Return the counters of one class in one ingress."""
    own = f'{LLAMA},slo_class="{slo_class}",instance="{ingress}"'
    series = {
        f'macroserve_requests_total{{{own},outcome="ok"}}': ok,
        f'macroserve_requests_total{{{own},outcome="failed"}}': failed,
        f'macroserve_requests_total{{{own},outcome="cancelled"}}': cancelled,
        f'macroserve_requests_refused_total{{{own},reason="late"}}': late,
        f"macroserve_slo_attainment_target{{{own}}}": steady(goal),
    }
    if attained is not None:
        series[f"macroserve_requests_attained_total{{{own}}}"] = attained
    return series


def operator(target=3, ready=3, leads=1, name="op-0"):
    own = f'{LLAMA},instance="{name}"'
    return {
        f'macroserve_operator_leader{{namespace="system",instance="{name}"}}': steady(leads),
        f"macroserve_operator_target_instances{{{own}}}": steady(target),
        f"macroserve_operator_ready_instances{{{own}}}": steady(ready),
    }


def cells(utilization=0.8, late=(0,), instances=3):
    """Return one gauge for each cell, the same in each of two ingresses."""
    series = {}
    for number, is_late in enumerate(late):
        for ingress in ("a", "b"):
            own = f'{LLAMA},cell="cell-{number}",instance="{ingress}"'
            series[f"macroserve_cell_late{{{own}}}"] = steady(is_late)
            series[f"macroserve_cell_utilization{{{own}}}"] = steady(utilization)
            series[f"macroserve_cell_instances{{{own}}}"] = steady(instances)
    return series


FINE = requests(growing(120), growing(118)) | operator() | cells()


def without(prefix):
    return {name: values for name, values in FINE.items() if not name.startswith(prefix)}


def run(tmp_path, series, at, tests):
    document = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": f"{EVERY_S}s",
        "tests": [
            {
                "interval": f"{EVERY_S}s",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": at,
                        "exp_samples": [{"labels": k, "value": v} for k, v in samples.items()],
                    }
                    for expression, samples in tests.items()
                ],
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(path))


def firing(tmp_path, series, at, *alerts):
    """Expect these alerts about llama, and no others but the heartbeat."""
    heartbeat = {'{alertname="MacroserveWatchdog"}': 1}
    by = "count by (alertname, namespace, macroinstance)"
    expected = {
        f'{{alertname="{alert}"' + ("}" if alert == NO_OPERATOR else f",{LLAMA}}}"): 1
        for alert in alerts
    }
    run(
        tmp_path,
        series,
        at,
        {f'{by} (ALERTS{{alertstate="firing"}})': heartbeat | expected},
    )


def test_rules_are_valid():
    assert len(RULES) >= 2
    promtool("check", "rules", *map(str, RULES))


@pytest.mark.parametrize("at", ["0s", "30s", "5m", "22m"])
def test_alerts_of_a_healthy_fleet_do_not_fire(tmp_path, at):
    firing(tmp_path, FINE, at)


@pytest.mark.parametrize("at", ["0s", "5m", "22m"])
def test_alerts_without_requests_do_not_fire(tmp_path, at):
    series = requests(steady(0), steady(0)) | operator() | cells(utilization=0.5)
    firing(tmp_path, series, at)


LOW_CASES = {
    "below the target": (requests(growing(60), growing(40)), [LOW]),
    "just above the target": (requests(growing(100), growing(91)), []),
    "just below the target": (requests(growing(100), growing(89)), [LOW]),
    "nothing attained, so no counter": (requests(growing(60)), [LOW]),
    "over two ingresses": (
        requests(growing(60), growing(60)) | requests(growing(60), growing(40), ingress="b"),
        [LOW],
    ),
    "one ingress makes up for the other": (
        requests(growing(60), growing(60)) | requests(growing(12), growing(8), ingress="b"),
        [],
    ),
    "refused as late": (requests(growing(60), growing(60), late=growing(20)), [LOW]),
    "failed": (requests(growing(100), growing(100), failed=growing(20)), [LOW, FAILING]),
    "cancelled": (requests(growing(60), growing(60), cancelled=growing(60)), []),
    "too few requests to say": (requests(growing(3), growing(0)), []),
    "few a minute, but for five": (requests(growing(6), growing(4)), [LOW]),
}


@pytest.mark.parametrize("case", LOW_CASES)
def test_attainment_alert_fires_below_the_target(case, tmp_path):
    series, alerts = LOW_CASES[case]
    firing(tmp_path, series | operator() | cells(), "10m", *alerts)


CLASS_CASES = {
    "both above their targets": (growing(95), growing(60), []),
    "the strict one below": (growing(90), growing(60), ["chat"]),
    "the lax one below": (growing(99), growing(40), ["batch"]),
    "both below": (growing(50), growing(40), ["batch", "chat"]),
}


@pytest.mark.parametrize("case", CLASS_CASES)
def test_attainment_alert_fires_for_the_class_below_its_target(case, tmp_path):
    chat, batch, classes = CLASS_CASES[case]
    series = requests(growing(100), chat, slo_class="chat", goal=0.94)
    series |= requests(growing(100), batch, slo_class="batch", goal=0.5)
    run(
        tmp_path,
        series | operator() | cells(),
        "10m",
        {
            f'count by (slo_class) (ALERTS{{alertstate="firing",alertname="{LOW}"}})': {
                f'{{slo_class="{name}"}}': 1 for name in classes
            }
        },
    )


def test_requests_of_a_class_that_are_refused_as_late_are_misses(tmp_path):
    chat = requests(growing(60), growing(60), late=growing(20), slo_class="chat")
    series = requests(growing(60), growing(60)) | chat
    share = 'round(macroserve:slo_class_attainment:ratio_rate5m{slo_class="chat"}, 0.01)'
    run(tmp_path, series, "10m", {share: {f'{{{LLAMA},slo_class="chat"}}': 0.75}})


def test_attainment_alert_fires_in_half_a_minute_and_ends_in_a_minute(tmp_path):
    ok = then((120, 10), (120, 2), (120, 10))
    attained = then((120, 10), (0, 2), (120, 10))
    series = requests(ok, attained) | operator() | cells()
    firing(tmp_path, series, "10m10s")
    firing(tmp_path, series, "10m30s", LOW)
    firing(tmp_path, series, "12m", LOW)
    firing(tmp_path, series, "13m10s")


def test_attainment_alert_with_few_good_requests_ends_in_five_minutes(tmp_path):
    ok = then((12, 10), (12, 3), (12, 10))
    attained = then((12, 10), (2, 3), (12, 10))
    series = requests(ok, attained) | operator() | cells()
    firing(tmp_path, series, "13m", LOW)
    firing(tmp_path, series, "14m15s")


def test_alert_names_the_macroinstance_it_is_about(tmp_path):
    bad = requests(growing(60), growing(20))
    others = {name.replace("llama", "qwen"): values for name, values in bad.items()}
    series = FINE | others
    by = "count by (macroinstance)"
    expected = {'{macroinstance="qwen"}': 1}
    run(
        tmp_path,
        series,
        "10m",
        {f'{by} (ALERTS{{alertstate="firing",alertname="{LOW}"}})': expected},
    )


@pytest.mark.parametrize(
    ("late", "alerts"),
    [((0,), []), ((1,), [LATE]), ((1, 0), []), ((1, 1), [LATE])],
)
def test_queue_alert_fires_when_all_cells_are_late(late, alerts, tmp_path):
    firing(tmp_path, FINE | cells(late=late), "2m", *alerts)


@pytest.mark.parametrize(
    ("utilization", "instances", "alerts"),
    [(0.1, 3, [UNDERUSED]), (0.25, 3, []), (0.1, 1, [])],
)
def test_underused_alert_needs_idle_cells_and_more_than_one_instance(
    utilization, instances, alerts, tmp_path
):
    series = FINE | cells(utilization=utilization, instances=instances)
    firing(tmp_path, series, "5m")
    firing(tmp_path, series, "25m", *alerts)


def test_utilization_is_weighted_by_the_sizes_of_cells(tmp_path):
    large, small = (
        cells(utilization=0.9, instances=9),
        cells(utilization=0.1, late=(0, 0), instances=1),
    )
    series = {**{k: v for k, v in small.items() if "cell-1" in k}, **large}
    run(
        tmp_path,
        series,
        "1m",
        {"macroserve:utilization:ratio": {f"macroserve:utilization:ratio{{{LLAMA}}}": 0.82}},
    )


def test_metrics_alert_fires_for_a_fleet_that_is_not_scraped(tmp_path):
    series = operator()
    firing(tmp_path, series, "1m")
    firing(tmp_path, series, "3m", MISSING)
    firing(tmp_path, series | requests(steady(0)), "3m")
    firing(tmp_path, operator(target=0, ready=0), "3m")


@pytest.mark.parametrize(
    ("ready", "at", "alerts"),
    [
        (2, "10m", []),
        (2, "16m", [NOT_READY]),
        (0, "1m", []),
        (0, "5m", [NONE_READY]),
        (3, "16m", []),
    ],
)
def test_alert_fires_while_instances_stay_unready(ready, at, alerts, tmp_path):
    firing(tmp_path, FINE | operator(ready=ready), at, *alerts)


def test_metrics_of_a_former_leader_are_ignored(tmp_path):
    stale = operator(target=9, ready=0, leads=0, name="op-1")
    firing(tmp_path, FINE | stale, "20m")


def test_alert_fires_while_no_operator_leads(tmp_path):
    firing(tmp_path, FINE | operator(leads=0), "1m")
    firing(tmp_path, FINE | operator(leads=0), "3m", NO_OPERATOR)
    firing(tmp_path, without("macroserve_operator"), "3m", NO_OPERATOR)


def test_recording_rules_give_the_expected_series(tmp_path):
    series = FINE | requests(growing(60), growing(30), late=growing(30), ingress="b")
    run(
        tmp_path,
        series,
        "10m",
        {
            f"round(macroserve:{name}, 0.001)": {f"{{{LLAMA}}}": value}
            for name, value in {
                "requests:rate1m": 3.5,
                "requests:rate5m": 3.5,
                "attainment:ratio_rate1m": 0.705,
                "attainment:ratio_rate5m": 0.705,
                "slo_attainment_target": 0.9,
                "instances": 3,
                "utilization:ratio": 0.8,
                "target_instances": 3,
                "ready_instances": 3,
            }.items()
        },
    )


def test_alerts_all_have_a_description_and_a_runbook():
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(alerts) >= 9
    for alert in alerts:
        assert {"summary", "description", "runbook"} == set(alert["annotations"])
        assert alert["labels"]["severity"] in {"none", "info", "warning", "critical"}
        assert all("\n" not in text.strip() for text in alert["annotations"].values())
    scaling = {a["alert"] for a in alerts if a["labels"].get("macroserve") == "scaling"}
    assert scaling == {"MacroserveWatchdog", LOW, LATE, MISSING}


def test_alert_annotations_name_the_macroinstance(tmp_path):
    labels = {"namespace": "ns", "macroinstance": "llama"}
    document = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": "5s",
        "tests": [
            {
                "interval": "5s",
                "input_series": [
                    {"series": k, "values": v}
                    for k, v in (requests(growing(60), growing(30)) | operator()).items()
                ],
                "alert_rule_test": [
                    {
                        "alertname": LOW,
                        "eval_time": "10m",
                        "exp_alerts": [
                            {
                                "exp_labels": {
                                    **labels,
                                    "slo_class": "default",
                                    "severity": "warning",
                                    "macroserve": "scaling",
                                },
                                "exp_annotations": _rendered(LOW, value="50%"),
                            }
                        ],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(document))
    promtool("test", "rules", str(path))


def _rendered(name, value):
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    (alert,) = [r for group in groups for r in group["rules"] if r.get("alert") == name]
    rendered = {}
    for key, text in alert["annotations"].items():
        text = text.replace("{{ $labels.namespace }}", "ns")
        text = text.replace("{{ $labels.macroinstance }}", "llama")
        text = text.replace("{{ $labels.slo_class }}", "default")
        rendered[key] = text.replace("{{ $value | humanizePercentage }}", value)
        assert "{{" not in rendered[key]
    return rendered
