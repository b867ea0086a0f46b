"""The objects of the chart fit each other, whatever the values are."""

import pytest
import yaml
from support.chart import CHART, NAMESPACE, Object, at, render

OPERATOR = "Deployment/macroserve-operator"
CONTAINER = "spec.template.spec.containers.0"
POLICY = "NetworkPolicy/macroserve-operator"


@pytest.mark.parametrize(
    "served_tls",
    [{}, {"issuerRef": {"name": "ours"}}, {"enabled": True}],
    ids=["none", "off", "own"],
)
def test_cluster_role_without_an_issuer_has_no_rights_at_cert_manager(served_tls: Object) -> None:
    rules = render({"servedTls": served_tls})["ClusterRole/macroserve-operator"]["rules"]
    assert not any("cert-manager.io" in rule["apiGroups"] for rule in rules)


def test_pod_monitor_with_served_tls_takes_an_instances_scheme_from_its_label() -> None:
    for enabled in (False, True):
        rendered = render({"monitoring": {"serving": True}, "servedTls": {"enabled": enabled}})
        for component in ("ingress", "instance"):
            (endpoint,) = rendered[f"PodMonitor/macroserve-{component}"]["spec"][
                "podMetricsEndpoints"
            ]
            schemes = [r for r in endpoint["relabelings"] if r["targetLabel"] == "__scheme__"]
            by_label = "__meta_kubernetes_pod_label_macroserve_io_tls"
            is_asked = enabled and component == "instance"
            assert [r["sourceLabels"] for r in schemes] == ([[by_label]] if is_asked else [])
            assert [r["regex"] for r in schemes] == (["true"] if is_asked else [])
            assert ("tlsConfig" in endpoint) is is_asked


def test_namespaced_objects_of_a_release_are_in_its_namespace() -> None:
    every = {"operator": True, "serving": True, "rules": True, "dashboard": {"enabled": True}}
    rendered = render({"monitoring": {**every, "alertmanagerConfig": {"enabled": True}}})
    for key, found in rendered.objects.items():
        is_of_cluster = key.startswith(("ClusterRole", "ValidatingWebhook"))
        assert found["metadata"].get("namespace") == (None if is_of_cluster else NAMESPACE), key


def test_selectors_of_the_operator_match_its_pods_alone() -> None:
    rendered = render({"monitoring": {"operator": True}})
    pods = {
        key: found["metadata"]["labels"]
        if found["kind"] == "Pod"
        else found["spec"]["template"]["metadata"]["labels"]
        for key, found in rendered.objects.items()
        if found["kind"] in ("Deployment", "Job", "Pod")
    }
    selectors = [
        rendered[OPERATOR]["spec"]["selector"]["matchLabels"],
        rendered["Service/macroserve-operator"]["spec"]["selector"],
        rendered["PodDisruptionBudget/macroserve-operator"]["spec"]["selector"]["matchLabels"],
        rendered[POLICY]["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert [key for key, labels in pods.items() if selector.items() <= labels.items()] == [
            OPERATOR
        ]
    monitor = rendered["ServiceMonitor/macroserve-operator"]["spec"]["selector"]["matchLabels"]
    service = rendered["Service/macroserve-operator"]["metadata"]["labels"]
    assert monitor.items() <= service.items()


def test_ports_by_name_exist_in_the_container() -> None:
    rendered = render({"monitoring": {"operator": True}})
    names = {port["name"] for port in at(rendered[OPERATOR], f"{CONTAINER}.ports")}
    service = rendered["Service/macroserve-operator"]["spec"]["ports"]
    assert {port["targetPort"] for port in service} <= names
    ingress = rendered[POLICY]["spec"]["ingress"]
    assert {port["port"] for rule in ingress for port in rule.get("ports", [])} <= names
    container = at(rendered[OPERATOR], CONTAINER)
    for probe, action in (
        ("startupProbe", "httpGet"),
        ("livenessProbe", "httpGet"),
        ("readinessProbe", "tcpSocket"),
    ):
        assert container[probe][action]["port"] in names
    (endpoint,) = rendered["ServiceMonitor/macroserve-operator"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service}


def test_ports_of_the_operator_name_their_protocol() -> None:
    """Server-side apply, which Helm 4 uses, requires a protocol before Kubernetes 1.21."""
    rendered = render()
    assert all("protocol" in port for port in at(rendered[OPERATOR], f"{CONTAINER}.ports"))
    ports = rendered["Service/macroserve-operator"]["spec"]["ports"]
    assert all("protocol" in port for port in ports)


def test_hooks_after_a_deletion_run_the_job_last() -> None:
    rendered = render()
    hooks = {
        key: found["metadata"]["annotations"]
        for key, found in rendered.objects.items()
        if "helm.sh/hook" in found["metadata"].get("annotations", {})
    }
    release = {key for key in rendered.objects if key.endswith("/macroserve-release")}
    assert set(hooks) == release | {"Pod/macroserve-test"}
    weights = {key: int(hooks[key]["helm.sh/hook-weight"]) for key in release}
    assert {hooks[key]["helm.sh/hook"] for key in release} == {"post-delete"}
    assert weights.pop("Job/macroserve-release") > max(weights.values())
    job = rendered["Job/macroserve-release"]["spec"]["template"]["spec"]
    (account,) = rendered["ClusterRoleBinding/macroserve-release"]["subjects"]
    assert account["name"] == job["serviceAccountName"] == "macroserve-release"
    assert account["namespace"] == NAMESPACE


def test_notes_after_an_install_name_commands_and_files_that_exist() -> None:
    notes = render().notes
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  kubectl")]
    assert len(commands) >= 3
    for line in commands:
        for word in line.split():
            if word.startswith("manifests/"):
                assert (CHART.parents[1] / word).exists()
    assert "--server-side" not in notes
    assert "--server-side" in render(is_upgrade=True, is_install=False).notes
    # What is printed as Alertmanager's configuration is one.
    (block,) = notes.split("label macroserve=")[1].split("\n\n")[1:2]
    (receiver,) = yaml.safe_load(block)["receivers"]
    assert receiver["webhook_configs"][0]["url"].endswith(".svc:9095/alerts")
