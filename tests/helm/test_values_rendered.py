"""Values decide which objects are rendered, and each value appears in one of them."""

import json
import tomllib

import helm_python as helm
import pytest
import yaml
from support.chart import CHART, NAMESPACE, ROOT, Object, at, chart, nested, render, value_paths
from support.newest_kubernetes import problems

VERSION = chart().metadata["appVersion"]

OPERATOR = "Deployment/macroserve-operator"
POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0"
WEBHOOKS = "ValidatingWebhookConfiguration/macroserve-operator"
CERTIFICATE = "Certificate/macroserve-operator"
POLICY = "NetworkPolicy/macroserve-operator"

DEFAULT = {
    OPERATOR,
    WEBHOOKS,
    POLICY,
    "ServiceAccount/macroserve-operator",
    "ClusterRole/macroserve-operator",
    "ClusterRoleBinding/macroserve-operator",
    "Role/macroserve-operator",
    "RoleBinding/macroserve-operator",
    "ClusterRole/macroserve-view",
    "ClusterRole/macroserve-edit",
    "Service/macroserve-operator",
    "Secret/macroserve-operator-webhook",
    "Secret/macroserve-operator-alerts",
    "PodDisruptionBudget/macroserve-operator",
    "ServiceAccount/macroserve-release",
    "ClusterRole/macroserve-release",
    "ClusterRoleBinding/macroserve-release",
    "Job/macroserve-release",
    "Pod/macroserve-test",
}
"""Without the Prometheus Operator's kinds in the cluster."""

RELEASE = {key for key in DEFAULT if key.endswith("/macroserve-release")}
RULES = {f"PrometheusRule/macroserve-{path.stem}" for path in CHART.glob("rules/*.yaml")}
OWN_CERTIFICATE = {"Secret/macroserve-operator-webhook"}
CERT_MANAGER = {"source": "CertManager"}
OWN_SECRET = {"source": "Secret", "secretName": "mine"}

PRESENCE: list[tuple[str, object, set[str], set[str]]] = [
    # path, value, what comes in addition, what goes
    ("operator.replicas", 1, set(), {"PodDisruptionBudget/macroserve-operator"}),
    (
        "operator.podDisruptionBudget.enabled",
        False,
        set(),
        {"PodDisruptionBudget/macroserve-operator"},
    ),
    ("webhook.certificate", OWN_SECRET, set(), OWN_CERTIFICATE),
    (
        "webhook.certificate",
        CERT_MANAGER,
        {"Issuer/macroserve-operator", CERTIFICATE},
        OWN_CERTIFICATE,
    ),
    (
        "webhook.certificate",
        {**CERT_MANAGER, "issuerRef": {"name": "ours"}},
        {CERTIFICATE},
        OWN_CERTIFICATE,
    ),
    ("alerts.existingSecret", "mine", set(), {"Secret/macroserve-operator-alerts"}),
    (
        "rbac.aggregateToUsers",
        False,
        set(),
        {"ClusterRole/macroserve-view", "ClusterRole/macroserve-edit"},
    ),
    ("networkPolicy.enabled", False, set(), {POLICY}),
    ("uninstall.releaseFinalizers", False, set(), RELEASE),
    ("monitoring.operator", True, {"ServiceMonitor/macroserve-operator"}, set()),
    (
        "monitoring.serving",
        True,
        {"PodMonitor/macroserve-ingress", "PodMonitor/macroserve-instance"},
        set(),
    ),
    ("monitoring.rules", True, RULES, set()),
    ("monitoring.dashboard.enabled", True, {"ConfigMap/macroserve-dashboard"}, set()),
    (
        "monitoring.alertmanagerConfig.enabled",
        True,
        {"AlertmanagerConfig/macroserve-operator"},
        set(),
    ),
    *((f"monitoring.{name}", False, set(), set()) for name in ("operator", "serving", "rules")),
]

REQUESTS = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
DIGEST = "sha256:" + "0" * 64
PEER = {"ipBlock": {"cidr": "10.0.0.0/8"}}
TOLERATION = {"key": "a", "operator": "Exists"}
PEM = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}

HF_SECRETS = ["hf*", "huggingface*", "hugging-face*"]
"""The default."""


def pod_policy(**changed: object) -> str:
    policy = {"allow": [], "capabilities": [], "secrets": HF_SECRETS, "serviceAccounts": []}
    return json.dumps(policy | changed, separators=(",", ":"))


POD_POLICIES: list[tuple[str, object, str]] = [
    # field, value, what the operator is told
    ("allow", ["hostPath"], pod_policy(allow=["hostPath"])),
    ("serviceAccounts", ["models"], pod_policy(serviceAccounts=["models"])),
    ("secrets", [], pod_policy(secrets=[])),
    ("capabilities", ["IPC_LOCK"], pod_policy(capabilities=["IPC_LOCK"])),
]

PROMETHEUS = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
"""The default."""


def served_network(**changed: object) -> str:
    network = {"clientsFrom": [], "enabled": True, "metricsFrom": [PROMETHEUS]}
    return json.dumps(network | changed, separators=(",", ":"))


SERVED_NETWORKS: list[tuple[str, object, str]] = [
    # field, value, what the operator is told
    ("enabled", False, served_network(enabled=False)),
    ("clientsFrom", [PEER], served_network(clientsFrom=[PEER])),
    ("metricsFrom", [PEER], served_network(metricsFrom=[PEER])),
]

ISSUER = {"name": "ours"}

FIELDS: list[tuple[str, object, str, str, object]] = [
    # path, value, object, path in it, what is there
    ("operator.image.repository", "r/o", OPERATOR, f"{CONTAINER}.image", "r/o:" + VERSION),
    ("operator.image.tag", "v9", OPERATOR, f"{CONTAINER}.image", "macroserve/operator:v9"),
    (
        "operator.image.digest",
        DIGEST,
        OPERATOR,
        f"{CONTAINER}.image",
        f"macroserve/operator@{DIGEST}",
    ),
    ("operator.image.pullPolicy", "Never", OPERATOR, f"{CONTAINER}.imagePullPolicy", "Never"),
    ("operator.replicas", 3, OPERATOR, "spec.replicas", 3),
    ("operator.imagePullSecrets", ["a"], OPERATOR, f"{POD}.imagePullSecrets", [{"name": "a"}]),
    (
        "operator.imagePullSecrets",
        ["a"],
        "Pod/macroserve-test",
        "spec.imagePullSecrets.0.name",
        "a",
    ),
    ("operator.namespaces", ["a"], OPERATOR, f"{CONTAINER}.args.0", "--namespace=a"),
    ("operator.resources", REQUESTS, OPERATOR, f"{CONTAINER}.resources", REQUESTS),
    ("operator.podLabels", {"a": "b"}, OPERATOR, "spec.template.metadata.labels.a", "b"),
    ("operator.podAnnotations", {"a": "b"}, OPERATOR, "spec.template.metadata.annotations.a", "b"),
    *(
        (f"operator.podPolicy.{field}", value, OPERATOR, f"{CONTAINER}.env.4.value", policy)
        for field, value, policy in POD_POLICIES
    ),
    ("operator.priorityClassName", "high", OPERATOR, f"{POD}.priorityClassName", "high"),
    ("operator.nodeSelector", {"a": "b"}, OPERATOR, f"{POD}.nodeSelector", {"a": "b"}),
    ("operator.nodeSelector", {"a": "b"}, "Job/macroserve-release", f"{POD}.nodeSelector.a", "b"),
    ("operator.tolerations", [TOLERATION], OPERATOR, f"{POD}.tolerations", [TOLERATION]),
    ("operator.affinity", {"nodeAffinity": {}}, OPERATOR, f"{POD}.affinity", {"nodeAffinity": {}}),
    (
        "operator.topologySpreadConstraints",
        [SPREAD],
        OPERATOR,
        f"{POD}.topologySpreadConstraints",
        [SPREAD],
    ),
    (
        "operator.serviceAccount.annotations",
        {"a": "b"},
        "ServiceAccount/macroserve-operator",
        "metadata.annotations.a",
        "b",
    ),
    (
        "operator.podDisruptionBudget.maxUnavailable",
        "50%",
        "PodDisruptionBudget/macroserve-operator",
        "spec.maxUnavailable",
        "50%",
    ),
    ("engine.image.repository", "r/e", OPERATOR, f"{CONTAINER}.env.2.value", "r/e:" + VERSION),
    ("engine.image.tag", "v9", OPERATOR, f"{CONTAINER}.env.2.value", "macroserve/engine:v9"),
    (
        "engine.image.digest",
        DIGEST,
        OPERATOR,
        f"{CONTAINER}.env.2.value",
        f"macroserve/engine@{DIGEST}",
    ),
    ("engine.image.pullPolicy", "Always", OPERATOR, f"{CONTAINER}.env.3.value", "Always"),
    ("webhook.failurePolicy", "Ignore", WEBHOOKS, "webhooks.1.failurePolicy", "Ignore"),
    ("webhook.timeoutSeconds", 9, WEBHOOKS, "webhooks.1.timeoutSeconds", 9),
    (
        "webhook.namespaceSelector",
        {"matchLabels": {"a": "b"}},
        WEBHOOKS,
        "webhooks.0.namespaceSelector.matchLabels.a",
        "b",
    ),
    (
        "webhook.certificate",
        {**CERT_MANAGER, "issuerRef": {"name": "ours", "kind": "ClusterIssuer"}},
        CERTIFICATE,
        "spec.issuerRef",
        {"name": "ours", "kind": "ClusterIssuer"},
    ),
    (
        "webhook.certificate",
        CERT_MANAGER,
        WEBHOOKS,
        "metadata.annotations",
        {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/macroserve-operator"},
    ),
    ("webhook.certificate", OWN_SECRET, OPERATOR, f"{POD}.volumes.0.secret.secretName", "mine"),
    (
        "webhook.certificate",
        {**OWN_SECRET, "caBundle": PEM},
        WEBHOOKS,
        "webhooks.0.clientConfig.caBundle",
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    ),
    ("alerts.existingSecret", "mine", OPERATOR, f"{POD}.volumes.1.secret.secretName", "mine"),
    ("networkPolicy.webhookFrom", [PEER], POLICY, "spec.ingress.0.from", [PEER]),
    ("networkPolicy.metricsFrom", [PEER], POLICY, "spec.ingress.1.from", [PEER]),
    ("networkPolicy.alertsFrom", [PEER], POLICY, "spec.ingress.2.from", [PEER]),
    *(
        (f"networkPolicy.served.{field}", value, OPERATOR, f"{CONTAINER}.env.5.value", network)
        for field, value, network in SERVED_NETWORKS
    ),
    *(
        (f"servedTls.{field}", value, OPERATOR, f"{CONTAINER}.env.6.value", told)
        for field, value, told in (
            ("enabled", True, '{"enabled":true,"issuerRef":{}}'),
            ("issuerRef", ISSUER, '{"enabled":false,"issuerRef":{"name":"ours"}}'),
        )
    ),
    (
        "servedTls",
        {"enabled": True, "issuerRef": ISSUER},
        "ClusterRole/macroserve-operator",
        "rules.10.apiGroups",
        ["cert-manager.io"],
    ),
    ("networkPolicy.apiServerPorts", [1234], POLICY, "spec.egress.1.ports", [{"port": 1234}]),
    (
        "monitoring",
        {"operator": True, "labels": {"release": "p"}},
        "ServiceMonitor/macroserve-operator",
        "metadata.labels.release",
        "p",
    ),
    (
        "monitoring",
        {"serving": True, "scrapeInterval": "15s"},
        "PodMonitor/macroserve-ingress",
        "spec.podMetricsEndpoints.0.interval",
        "15s",
    ),
    (
        "monitoring.dashboard",
        {"enabled": True, "labels": {"a": "b"}},
        "ConfigMap/macroserve-dashboard",
        "metadata.labels.a",
        "b",
    ),
    (
        "monitoring.dashboard",
        {"enabled": True, "annotations": {"a": "b"}},
        "ConfigMap/macroserve-dashboard",
        "metadata.annotations",
        {"a": "b"},
    ),
]


def test_chart_in_helms_strict_lint_has_no_errors() -> None:
    report = helm.lint(CHART, strict=True)
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


def test_chart_and_images_have_the_projects_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = chart().metadata
    assert metadata["appVersion"] == metadata["version"] == project["version"]
    image = yaml.safe_load((ROOT / "manifests" / "l20-cluster.yaml").read_text())["spec"][
        "template"
    ]
    assert image["spec"]["containers"][0]["image"] == f"macroserve/engine:{project['version']}-gpu"


def test_chart_with_default_values_renders_the_default_objects() -> None:
    assert set(render().objects) == DEFAULT


@pytest.mark.parametrize(("path", "value", "added", "removed"), PRESENCE)
def test_value_that_switches_objects_adds_and_removes_them(
    path: str, value: object, added: set[str], removed: set[str]
) -> None:
    assert set(render(nested(path, value)).objects) == (DEFAULT | added) - removed


@pytest.mark.parametrize(("path", "value", "key", "where", "expected"), FIELDS)
def test_value_that_sets_a_field_is_rendered_there(
    path: str, value: object, key: str, where: str, expected: object
) -> None:
    assert at(render(nested(path, value))[key], where) == expected


@pytest.mark.parametrize("path", value_paths())
def test_chart_values_are_all_in_a_table_above(path: str) -> None:
    tried = [nested(at_path, value) for at_path, value, *_ in (*PRESENCE, *FIELDS)]
    assert any(_has(values, path) for values in tried)


def test_chart_with_every_value_changed_renders() -> None:
    rendered = render(_every_value_changed())
    assert set(rendered.objects) >= RULES | {
        "AlertmanagerConfig/macroserve-operator",
        "ServiceMonitor/macroserve-operator",
    }


@pytest.mark.integration
def test_newest_kubernetes_knows_every_object_of_chart_and_manifests() -> None:
    tried = [{}, _every_value_changed(), *(nested(path, value) for path, value, *_ in PRESENCE)]
    rendered = [found for values in tried for found in render(values).objects.values()]
    files = [*CHART.glob("crds/*.yaml"), *(ROOT / "manifests" / "operator").glob("*.yaml")]
    written = [
        found
        for path in files
        if path.name != "kustomization.yaml"
        for found in yaml.safe_load_all(path.read_text())
        if found
    ]
    assert problems([*rendered, *written]) == set()


def _every_value_changed() -> Object:
    """Return values that all differ from their defaults, unless they exclude another value."""
    values: Object = {}
    for path, value, *_ in (*FIELDS, *PRESENCE):
        if value is not False and path not in ("webhook.certificate", "operator.replicas"):
            _merge(values, nested(path, value))
    return values


def _has(tree: Object, path: str) -> bool:
    try:
        at(tree, path)
    except KeyError:
        return False
    return True


def _merge(into: Object, values: Object) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
