"""Values are described and typed, and invalid ones are refused with a clear message."""

import re
from collections.abc import Iterator

import helm_python as helm
import pytest
from support.chart import CHART, Object, chart, nested, schema, value_paths

LINES = (CHART / "values.yaml").read_text().splitlines()

WRONG: list[tuple[str, object, str]] = [
    # path, value, what Helm says
    ("operator.replicas", "two", "at '/operator/replicas': got string, want integer"),
    ("operator.replicas", 0, "at '/operator/replicas': minimum: got 0, want 1"),
    ("operator.replicas", 1.5, "at '/operator/replicas': got number, want integer"),
    ("operator.replica", 2, "at '/operator': additional properties 'replica' not allowed"),
    ("operators", {}, "at '': additional properties 'operators' not allowed"),
    ("operator.image", "macroserve/operator", "at '/operator/image': got string, want object"),
    ("operator.image.repository", "", "at '/operator/image/repository': '' does not match"),
    ("operator.image.tag", 1.2, "at '/operator/image/tag': got number, want string"),
    ("operator.image.digest", "abc", "at '/operator/image/digest': 'abc' does not match"),
    (
        "operator.image.pullPolicy",
        "Sometimes",
        "at '/operator/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
    ),
    (
        "operator.imagePullSecrets",
        [{"name": "a"}],
        "at '/operator/imagePullSecrets/0': got object, want string",
    ),
    (
        "operator.resources.limits.memory",
        "a lot",
        "at '/operator/resources/limits/memory': 'a lot' does not match",
    ),
    ("operator.podLabels.a", 1, "at '/operator/podLabels/a': got number, want string"),
    (
        "operator.podLabels",
        {"app.kubernetes.io/name": "mine"},
        "invalid propertyName 'app.kubernetes.io/name'",
    ),
    (
        "operator.podPolicy.allow",
        ["everything"],
        "at '/operator/podPolicy/allow/0': value must be one of 'privileged',",
    ),
    ("operator.podPolicy.alow", [], "at '/operator/podPolicy': additional properties 'alow' not"),
    ("operator.priorityClassName", "High!", "at '/operator/priorityClassName': 'High!' does not"),
    ("operator.affinity.zone", {}, "at '/operator/affinity': additional properties 'zone' not"),
    (
        "operator.podDisruptionBudget.maxUnavailable",
        0,
        "at '/operator/podDisruptionBudget/maxUnavailable': minimum: got 0, want 1",
    ),
    ("engine.image.tag", "a b", "at '/engine/image/tag': 'a b' does not match pattern"),
    (
        "webhook.failurePolicy",
        "fail",
        "at '/webhook/failurePolicy': value must be one of 'Fail', 'Ignore'",
    ),
    ("webhook.timeoutSeconds", 31, "at '/webhook/timeoutSeconds': maximum: got 31, want 30"),
    (
        "webhook.certificate.source",
        "Vault",
        "at '/webhook/certificate/source': value must be one of 'Helm', 'CertManager', 'Secret'",
    ),
    (
        "webhook.certificate",
        {"source": "Secret"},
        "at '/webhook/certificate/secretName': minLength: got 0, want 1",
    ),
    (
        "webhook.certificate.caBundle",
        "TUlJ",
        "at '/webhook/certificate/caBundle': 'TUlJ' does not match pattern",
    ),
    (
        "webhook.certificate.issuerRef",
        {"kind": "Issuer"},
        "at '/webhook/certificate/issuerRef': properties 'name' required, if 'kind' exists",
    ),
    ("servedTls.enabled", "yes", "at '/servedTls/enabled': got string, want boolean"),
    ("servedTls.issuer", {}, "at '/servedTls': additional properties 'issuer' not allowed"),
    (
        "servedTls.issuerRef",
        {"kind": "Issuer"},
        "at '/servedTls/issuerRef': properties 'name' required, if 'kind' exists",
    ),
    (
        "networkPolicy.metricsFrom",
        [{}],
        "at '/networkPolicy/metricsFrom/0': minProperties: got 0, want 1",
    ),
    (
        "networkPolicy.metricsFrom",
        [],
        "at '/networkPolicy/metricsFrom': minItems: got 0, want 1",
    ),
    (
        "networkPolicy.alertsFrom",
        [],
        "at '/networkPolicy/alertsFrom': minItems: got 0, want 1",
    ),
    (
        "networkPolicy.apiServerPorts",
        [],
        "at '/networkPolicy/apiServerPorts': minItems: got 0, want 1",
    ),
    (
        "networkPolicy.apiServerPorts",
        ["https"],
        "at '/networkPolicy/apiServerPorts/0': got string, want integer",
    ),
    (
        "monitoring.rules",
        "yes",
        "at '/monitoring/rules': value must be one of 'auto', true, false",
    ),
    (
        "monitoring.scrapeInterval",
        5,
        "at '/monitoring/scrapeInterval': got number, want string",
    ),
    (
        "uninstall.releaseFinalizers",
        "no",
        "at '/uninstall/releaseFinalizers': got string, want boolean",
    ),
]


@pytest.mark.parametrize(("path", "value", "sentence"), WRONG)
def test_wrong_value_is_refused_by_the_schema(path: str, value: object, sentence: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        chart().validate_schema(chart().merge_values(nested(path, value)))
    assert sentence in str(refused.value)


def test_values_with_globals_of_a_parent_chart_are_valid() -> None:
    """Helm then adds the parent's globals to the values."""
    chart().validate_schema(chart().merge_values({"global": {"imageRegistry": "ours"}}))


def test_schema_has_exactly_the_values_of_the_chart() -> None:
    defaults = chart().values
    for path, node in _objects(schema()):
        values: Object = defaults
        for key in filter(None, path.split(".")):
            values = values[key]
        if values or not path:
            assert set(node["properties"]) - {"global"} == set(values), path
        assert node["additionalProperties"] is False, path


@pytest.mark.parametrize("path", value_paths())
def test_values_are_all_described(path: str) -> None:
    """A comment above the value describes it."""
    depth = -1
    line = -1
    for depth, key in enumerate(path.split(".")):
        pattern = re.compile(rf"{'  ' * depth}{key}:")
        line = next(i for i in range(line + 1, len(LINES)) if pattern.match(LINES[i]))
    assert LINES[line - 1].startswith(f"{'  ' * depth}# "), path


def _objects(node: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """The parts of the schema with fixed keys."""
    if "properties" in node and node.get("type") == "object":
        yield path, node
        for key, inner in node["properties"].items():
            yield from _objects(inner, f"{path}.{key}" if path else key)
