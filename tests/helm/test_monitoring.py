"""The chart's monitoring fits the metrics that Macroserve serves."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY as OPERATOR_METRICS
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.chart import CHART, ROOT, Object, render
from support.promtool import promtool
from support.slo_classes import default_class

from macroserve.api.manifest import parse
from macroserve.core.status import Pool
from macroserve.operator import metrics as operator_metrics
from macroserve.operator.k8s import names
from macroserve.operator.render import head, ingress, instance
from macroserve.operator.render.context import RenderContext
from macroserve.serving.ingress.metrics import IngressMetrics, cell_page

RULE_FILES = sorted(CHART.glob("rules/*.yaml"))
assert operator_metrics.RECONCILES  # importing the module registers them
BOARD = json.loads((CHART / "dashboards" / "macroserve.json").read_text())
METRIC = re.compile(r"\b(?:macroserve|vllm)[a-z0-9_:]*")
LABEL_SETS = re.compile(r"\{[^}]*\}|\b(?:by|on|ignoring|group_left) \([^)]*\)")


def panels() -> Iterator[Object]:
    return (panel for panel in BOARD["panels"] if panel["type"] != "row")


def board_queries() -> list[str]:
    """Return the queries with Grafana's variables filled in."""
    return [
        target["expr"]
        .replace("$namespace", ".*")
        .replace("$macroinstance", ".*")
        .replace("$__rate_interval", "1m")
        for panel in panels()
        for target in panel["targets"]
    ]


def rules() -> Iterator[Object]:
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


@pytest.fixture(scope="module")
def served() -> set[str]:
    """Return the names of all series that Macroserve's processes serve."""
    pages = [
        IngressMetrics("default", "llama", [default_class()]).page(),
        cell_page([], {"namespace": "default", "macroinstance": "llama"}),
        generate_latest(OPERATOR_METRICS).decode(),
    ]
    return {
        name
        for page in pages
        for family in text_string_to_metric_families(page)
        for name in _series(family.name, family.type)
    }


@pytest.fixture(scope="module")
def vllms() -> set[str]:
    """Return the names that vLLM's own logger registers."""
    package = importlib.util.find_spec("vllm")
    assert package and package.origin
    source = Path(package.origin).parent / "v1" / "metrics" / "loggers.py"
    return set(re.findall(r'"(vllm:[a-z_]+)"', source.read_text()))


def test_metrics_that_queries_name_are_all_served(served: set[str], vllms: set[str]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = [*board_queries(), *(rule["expr"] for rule in rules())]
    asked += [variable["query"]["query"] for variable in BOARD["templating"]["list"][1:]]
    found = {
        name
        for query in asked
        for name in METRIC.findall(LABEL_SETS.sub("", query))
        if name != "macroinstance"
    }
    assert len(found) > 20
    assert found - served - recorded - vllms == set()


@pytest.mark.integration
def test_dashboard_queries_are_all_valid_promql(tmp_path: Path) -> None:
    """A query is tested as a rule of a file, because promtool parses rules as Prometheus does."""
    records = [
        {"record": f"query:{number}", "expr": query} for number, query in enumerate(board_queries())
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    assert f"{len(records)} rules found" in promtool("check", "rules", str(path))


@pytest.mark.integration
@pytest.mark.parametrize("path", RULE_FILES, ids=lambda path: path.name)
def test_rules_are_all_valid_for_prometheus(path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", str(path))


def test_rules_in_the_chart_equal_their_files() -> None:
    rendered = render({"monitoring": {"rules": True}})
    for path in RULE_FILES:
        found = rendered[f"PrometheusRule/macroserve-{path.stem}"]
        assert found["spec"] == yaml.safe_load(path.read_text())


def test_dashboard_in_the_chart_equals_its_file() -> None:
    rendered = render({"monitoring": {"dashboard": {"enabled": True}}})
    (content,) = rendered["ConfigMap/macroserve-dashboard"]["data"].values()
    assert json.loads(content) == BOARD


def test_alertmanager_routes_the_alerts_that_the_rules_raise() -> None:
    rendered = render({"monitoring": {"alertmanagerConfig": {"enabled": True}}})
    route = rendered["AlertmanagerConfig/macroserve-operator"]["spec"]["route"]
    (matcher,) = route["matchers"]
    routed = [
        rule["alert"]
        for rule in rules()
        if rule.get("labels", {}).get(matcher["name"]) == matcher["value"]
    ]
    assert routed


def test_monitors_find_the_pods_and_their_ports() -> None:
    document = yaml.safe_load((ROOT / "manifests" / "emulated.yaml").read_text())
    render_context = RenderContext(parse(document), document, "default", "uid", "image", "Always")
    pods = {
        "ingress": ingress.deployment(render_context)["spec"]["template"],
        "instance": instance.instance_pod(render_context, "instance-0", "cell-0", Pool.LP),
        "head": head.deployment(render_context)["spec"]["template"],
    }
    rendered = render({"monitoring": {"serving": True}})
    scraped = {"ingress": names.PRIVATE_PORT, "instance": names.INSTANCE_PORT}
    for component, number in scraped.items():
        spec = rendered[f"PodMonitor/macroserve-{component}"]["spec"]
        wanted = spec["selector"]["matchLabels"].items()
        found = [name for name, pod in pods.items() if wanted <= pod["metadata"]["labels"].items()]
        assert found == [component]
        (endpoint,) = spec["podMetricsEndpoints"]
        ports = pods[component]["spec"]["containers"][0]["ports"]
        assert {port["name"]: port["containerPort"] for port in ports}[endpoint["port"]] == number


def test_network_policy_lets_the_operator_reach_heads_and_instances() -> None:
    document = yaml.safe_load((ROOT / "manifests" / "emulated.yaml").read_text())
    render_context = RenderContext(parse(document), document, "default", "uid", "image", "Always")
    egress = render()["NetworkPolicy/macroserve-operator"]["spec"]["egress"]
    for pod in (
        head.deployment(render_context)["spec"]["template"],
        instance.instance_pod(render_context, "instance-0", "cell-0", Pool.LP),
    ):
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        assert [
            rule
            for rule in egress
            for peer in rule.get("to", [])
            if {"port": port} in rule["ports"]
            and peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        ]


def test_dashboard_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_dashboard_panels_have_distinct_titles_and_descriptions() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    titles = [panel["title"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    assert len({(p["title"], p["type"]) for p in panels()}) == len(titles)
    for panel in panels():
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


def _series(name: str, kind: str) -> list[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return [name + suffix for suffix in suffixes.get(kind, ("",))]
