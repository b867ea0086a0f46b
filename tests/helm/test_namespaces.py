"""The operator can be limited to some namespaces."""

import pytest
import yaml
from support.chart import NAMESPACE, Rendered, at, chart, render

TEAMS = ["team-a"]
SERVED = ("macroserve-operator-served", "macroserve-release")
SELECTOR = {
    "matchLabels": {"models": "yes"},
    "matchExpressions": [{"key": "a", "operator": "Exists"}],
}


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    values = {"monitoring": {"serving": True}, "webhook": {"namespaceSelector": SELECTOR}}
    return render({"operator": {"namespaces": TEAMS}, **values})


def test_operator_with_namespaces_has_rights_in_these_alone(rendered: Rendered) -> None:
    everywhere = {key for key in rendered.objects if key.startswith("ClusterRole")}
    assert everywhere == {"ClusterRole/macroserve-view", "ClusterRole/macroserve-edit"}


def test_roles_of_namespaces_have_the_rules_of_the_cluster_role() -> None:
    everywhere = render()["ClusterRole/macroserve-operator"]["rules"]
    release = render()["ClusterRole/macroserve-release"]["rules"]
    text = render({"operator": {"namespaces": TEAMS}})
    assert text["Role/macroserve-operator-served"]["rules"] == everywhere
    assert text["Role/macroserve-release"]["rules"] == release
    for name in SERVED:
        for kind in ("Role", "RoleBinding"):
            assert text[f"{kind}/{name}"]["metadata"]["namespace"] == "team-a"
        binding = text[f"RoleBinding/{name}"]
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["roleRef"]["name"] == name
        account = name.removesuffix("-served")
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        ]
    assert at(text["Role/macroserve-operator"], "metadata.namespace") == NAMESPACE


def test_operator_and_release_job_get_the_namespaces(rendered: Rendered) -> None:
    pod = "spec.template.spec.containers.0"
    args = at(rendered["Deployment/macroserve-operator"], f"{pod}.args")
    assert args[0] == "--namespace=team-a"
    assert "--all-namespaces" not in args
    told = {"name": "MACROSERVE_NAMESPACES", "value": "team-a"}
    assert told in at(rendered["Deployment/macroserve-operator"], f"{pod}.env")
    assert told in at(rendered["Job/macroserve-release"], f"{pod}.env")


def test_webhook_and_monitors_select_these_namespaces_alone(rendered: Rendered) -> None:
    own = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": TEAMS}
    for webhook in rendered["ValidatingWebhookConfiguration/macroserve-operator"]["webhooks"]:
        assert webhook["namespaceSelector"] == {
            "matchLabels": {"models": "yes"},
            "matchExpressions": [{"key": "a", "operator": "Exists"}, own],
        }
    for component in ("ingress", "instance"):
        monitor = rendered[f"PodMonitor/macroserve-{component}"]
        assert at(monitor, "spec.namespaceSelector") == {"matchNames": TEAMS}


def test_namespaces_have_a_role_each() -> None:
    values = {"operator": {"namespaces": ["team-a", "team-b"]}}
    texts = chart().render(values, name="macroserve", namespace=NAMESPACE)
    manifests = [text for path, text in texts.items() if path.endswith(".yaml")]
    objects = [obj for text in manifests for obj in yaml.safe_load_all(text)]
    for kind in ("Role", "RoleBinding"):
        found = {
            (obj["metadata"]["name"], obj["metadata"]["namespace"])
            for obj in objects
            if obj and obj["kind"] == kind
        }
        served = {(n, t) for n in SERVED for t in ("team-a", "team-b")}
        assert found == served | {("macroserve-operator", NAMESPACE)}
    deployment = next(obj for obj in objects if obj and obj["kind"] == "Deployment")
    args = at(deployment, "spec.template.spec.containers.0.args")
    assert args[:2] == ["--namespace=team-a", "--namespace=team-b"]
