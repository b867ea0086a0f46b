"""The dashboard's queries return series of a real Prometheus, with the labels of their legends."""

import json
import re

import pytest
from cluster import Capability, Cluster
from world.monitoring import Monitoring, monitor
from world.release import CHART, NAMESPACE, Release
from world.served import Served
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs(Capability.POD_NETWORK)]

BOARD = json.loads((CHART / "dashboards" / "macroserve.json").read_text())
RULES = sorted(CHART.glob("rules/*.yaml"))

NOTHING_TO_SHOW = (
    "macroserve_cell_decodes_total",
    "macroserve_requests_refused_total",
    "macroserve_reroutes_total",
    "macroserve_operator_errors_total",
    "vllm:",
)
"""Panels without data here: nothing is refused, moved or fails, and emulated engines neither draft
tokens nor have vLLM's metrics."""


def test_dashboard_panels_under_load_all_show_data(
    served: Served, release: Release, cluster: Cluster
) -> None:
    with (
        monitor(cluster, RULES, NAMESPACE) as monitoring,
        Traffic(served.endpoint) as traffic,
    ):
        traffic.after(20)
        for panel in BOARD["panels"]:
            for target in panel.get("targets", ()):
                if not any(name in target["expr"] for name in NOTHING_TO_SHOW):
                    it_shows(monitoring, panel["title"], target, served)
    assert not traffic.failures


def it_shows(monitoring: Monitoring, title: str, target: dict[str, str], served: Served) -> None:
    query = (
        target["expr"]
        .replace("$namespace", served.kube.namespace)
        .replace("$macroinstance", served.name)
        .replace("$__rate_interval", "30s")
    )
    found = eventually(
        lambda: monitoring.query(query), 60, describe=lambda: f"{title}: {query}", every_s=1
    )
    for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
        assert all(label in dict(series) for series in found), f"{title} has no {label}"
