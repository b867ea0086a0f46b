"""Write the page of the metrics and alerts from the registries and the chart's rules."""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from tables import code, prose, table

import macroserve.operator.runtime  # registers the operator's metrics
from macroserve.serving.ingress.metrics import IngressMetrics, cell_page

RULES = Path(__file__).parents[2] / "helm" / "macroserve" / "rules"
PREFIX = "macroserve_operator_"
HEAD = """# Metrics and alerts

| metrics | port | path |
|---|---|---|
| ingress and cells | 8001 of an ingress pod (private) | `/macroserve/metrics` |
| vLLM's own (`vllm:*`) | 8000 of an instance pod | `/metrics` |
| operator | 9090 of an operator pod | `/metrics` |
| all of one deployment under `macroserve up` | the private port that it prints | `/metrics` |

The last page merges those of all ingresses and instances. Its `macroserve_metrics_source_up` is 0
for a `source` that did not answer in time; sums are then too small.

"""
COLUMNS = ("metric", "type", "labels", "meaning")
Row = tuple[str, str, str, str]


def page() -> str:
    assert macroserve.operator.runtime
    ingress = IngressMetrics("namespace", "macroinstance", ()).registry
    cells = cell_page((), {"namespace": "", "macroinstance": ""})
    return (
        HEAD
        + "## Ingress\n\n"
        + table(COLUMNS, _registered(ingress))
        + "\n## Cells\n\nCells report these to the ingresses, which expose them. Labels:"
        + " `namespace`, `macroinstance`, `cell`.\n\n"
        + table(COLUMNS[:2] + COLUMNS[3:], _printed(cells))
        + "\n## Operator\n\n"
        + table(COLUMNS, (row for row in _registered(REGISTRY) if PREFIX in row[0]))
        + "\n"
        + _rules("recording.yaml", "Recording rules", "record", _record)
        + _rules("alerts.yaml", "Alerts", "alert", _alert)
    )


def _registered(registry: CollectorRegistry) -> Iterable[Row]:
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        collector = registry._names_to_collectors[name]
        labels = ", ".join(code(label) for label in getattr(collector, "_labelnames", ()))
        yield code(name), family.type, labels, prose(family.documentation)


def _printed(text: str) -> Iterable[tuple[str, str, str]]:
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        yield code(name), family.type, prose(family.documentation)


def _rules(file: str, title: str, kind: str, row) -> str:
    groups = yaml.safe_load((RULES / file).read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"] if kind in rule]
    if kind == "record":
        return f"## {title}\n\n" + table(("name", "expression"), map(row, rules)) + "\n"
    head = ("alert", "severity", "for", "meaning")
    return f"## {title}\n\n" + table(head, map(row, rules)) + "\n" + _runbooks(rules)


def _record(rule: dict) -> tuple[str, str]:
    return code(rule["record"]), code(" ".join(rule["expr"].split()))


def _alert(rule: dict) -> tuple[str, str, str, str]:
    summary = _plain(rule["annotations"]["summary"])
    return code(rule["alert"]), rule["labels"]["severity"], rule.get("for", ""), summary


def _runbooks(rules: list[dict]) -> str:
    return "### Runbooks\n\n" + "".join(
        f"**{rule['alert']}**: {_plain(rule['annotations']['description'])} "
        f"{_plain(rule['annotations']['runbook'])}\n\n"
        for rule in rules
    )


def _plain(text: str) -> str:
    """Return an annotation with words in place of its template's expressions."""
    text = text.replace("{{ $labels.namespace }}/{{ $labels.macroinstance }}", "The MacroInstance")
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), text)
    return prose(re.sub(r"\{\{ \$value[^}]*\}\}", "N", text))
