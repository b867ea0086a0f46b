"""The operator runs on a real API server. No node runs its pods, so they stay Pending."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
import yaml
from cluster import ApiCluster, KubectlError
from support import crd, quickstart
from support.operator_process import OperatorProcess, emulated, wait_for
from support.team import Team
from world.repeating import repeating

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
OWNED = "deployment,service,configmap,secret,poddisruptionbudget,pod"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster(controllers=True) as cluster:
        cluster.apply_crd(crd.PATH)
        yield cluster


@pytest.fixture(scope="module")
def operator(
    cluster: ApiCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    with OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("operator")) as process:
        wait_for(lambda: process.leads, "the operator leads")
        yield process
        assert "Traceback" not in process.log


@pytest.fixture
def team(cluster: ApiCluster) -> Team:
    return Team(cluster)


def test_macroinstance_gets_all_its_objects(operator: OperatorProcess, team: Team) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    wait_for(lambda: len(team.names("deployment")) == 2, "its deployments")
    assert team.names("deployment") == {"llama-head", "llama-ingress"}
    assert team.names("service") == {"llama", "llama-head", "llama-instances"}
    assert team.names("poddisruptionbudget") == {"llama-ingress", "llama-instances"}
    assert team.names("configmap") == {"llama-manifest"}
    assert team.names("secret") == {"llama-tokens"}
    uid = (team.get("mi", "llama") or {})["metadata"]["uid"]
    for item in team.items(OWNED):
        (owner,) = item["metadata"]["ownerReferences"]
        if owner["kind"] != "ReplicaSet":
            assert (owner["uid"], owner["controller"]) == (uid, True), item["metadata"]["name"]
    wait_for(lambda: team.condition("llama", "Progressing")["status"] == "True", "its status")
    assert team.condition("llama", "Ready")["reason"] == "HeadUnavailable"
    assert "InstanceAdded" in team.event_reasons("llama")


def test_newest_kubectl_runs_the_quickstart(
    cluster: ApiCluster, operator: OperatorProcess, team: Team
) -> None:
    _, *options = cluster.kubectl_command

    def kubectl(*arguments: str) -> str:
        command = [cluster.binaries / "kubectl-newest", *options, "-n", team.name, *arguments]
        return subprocess.run(command, cwd=ROOT, text=True, check=True, stdout=PIPE).stdout

    apply, get, scale, describe = map(str.split, quickstart.COMMANDS)
    assert "macroinstance.macroserve.io/emulated created" in kubectl(*apply)
    team.wait_for_instances("emulated", 8)
    assert get[-1] == "--watch"
    assert "emulated" in kubectl(*get, "--request-timeout=3s")
    assert "macroinstance.macroserve.io/emulated scaled" in kubectl(*scale)
    team.wait_for_instances("emulated", 7)
    described = kubectl(*describe)
    assert "Conditions:" in described and "InstanceAdded" in described


def test_scaling_by_the_subresource_is_followed(operator: OperatorProcess, team: Team) -> None:
    def least() -> int:
        """Return the number of healthy pods that the disruption controller requires."""
        budget = team.get("pdb", "llama-instances") or {}
        return budget.get("status", {}).get("desiredHealthy", -1)

    team.apply(emulated("llama", 2))
    team.wait_for_instances("llama", 2)
    team.kubectl("scale", "mi/llama", "--replicas=5")
    team.wait_for_instances("llama", 5)
    wait_for(lambda: least() == 4, "one of five may be missing")
    team.kubectl("scale", "mi/llama", "--replicas=1")
    team.wait_for_instances("llama", 1)
    wait_for(lambda: least() == 0, "the only one may be missing")
    cells = {pod["metadata"]["labels"]["macroserve.io/cell"] for pod in _instance_pods(team)}
    assert len(cells) == 1


def _instance_pods(team: Team) -> list[dict[str, Any]]:
    return [
        pod
        for pod in team.items("pod")
        if pod["metadata"]["labels"]["macroserve.io/component"] == "instance"
    ]


def test_deleted_objects_are_created_again(operator: OperatorProcess, team: Team) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    wait_for(lambda: len(team.names("poddisruptionbudget")) == 2, "its budgets")
    for what in (
        "service/llama",
        "deployment/llama-head",
        "pdb/llama-ingress",
        "cm/llama-manifest",
    ):
        kind, name = what.split("/")
        before = (team.get(kind, name) or {})["metadata"]["uid"]
        team.kubectl("delete", what)

        def came_back(kind: str = kind, name: str = name, before: str = before) -> bool:
            found = team.get(kind, name)
            return found is not None and found["metadata"]["uid"] != before

        wait_for(came_back, f"{what} again")


def test_changed_object_is_restored_and_foreign_fields_stay(
    operator: OperatorProcess, team: Team
) -> None:
    team.apply(emulated("llama"))
    wait_for(lambda: team.get("deployment", "llama-ingress"), "its ingress")
    team.kubectl("annotate", "deployment/llama-ingress", "theirs=stays")
    team.kubectl("scale", "deployment/llama-ingress", "--replicas=0")

    def replicas() -> int:
        return (team.get("deployment", "llama-ingress") or {})["spec"]["replicas"]

    wait_for(lambda: replicas() == 2, "two replicas again")
    found = team.get("deployment", "llama-ingress") or {}
    assert found["metadata"]["annotations"]["theirs"] == "stays"


def test_ingress_is_scaled_by_its_autoscaler_or_by_a_fixed_number(
    operator: OperatorProcess, team: Team
) -> None:
    def replicas() -> int:
        return (team.get("deployment", "llama-ingress") or {"spec": {}})["spec"].get("replicas", 0)

    def autoscaler() -> dict[str, Any]:
        return team.get("hpa", "llama-ingress") or {}

    team.apply(emulated("llama", ingress={"replicas": 3}))
    wait_for(lambda: replicas() == 3, "three replicas")
    team.apply(emulated("llama", ingress={"minReplicas": 2, "maxReplicas": 5}))
    wait_for(autoscaler, "an autoscaler")
    assert autoscaler()["metadata"]["ownerReferences"][0]["name"] == "llama"
    assert replicas() == 3, "a change of who sets the number changes none"
    # The autoscaler's own way, here taken by a person, as no node measures processor time.
    team.kubectl("scale", "deployment/llama-ingress", "--replicas=4")
    ingress = {"minReplicas": 1, "maxReplicas": 5, "template": {"spec": {"priorityClassName": "p"}}}
    team.apply(emulated("llama", ingress=ingress))
    wait_for(lambda: autoscaler()["spec"]["minReplicas"] == 1, "its bounds change")

    def template() -> dict[str, Any]:
        found = team.get("deployment", "llama-ingress") or {}
        return found["spec"]["template"]["spec"]

    wait_for(lambda: template().get("priorityClassName") == "p", "its template changes")
    assert replicas() == 4, "applying the Deployment leaves the number to the autoscaler"
    team.apply(emulated("llama", ingress={}))
    wait_for(lambda: not autoscaler(), "no autoscaler")
    wait_for(lambda: replicas() == 2, "two replicas")


def test_foreign_service_of_the_same_name_is_unchanged(
    operator: OperatorProcess, team: Team
) -> None:
    team.kubectl("create", "service", "clusterip", "llama", "--tcp=80:80")
    team.apply(emulated("llama"))
    wait_for(lambda: team.condition("llama", "Degraded")["reason"] == "NameTaken", "a issue")
    found = team.get("service", "llama") or {}
    assert found["spec"]["ports"][0]["port"] == 80
    assert "ownerReferences" not in found["metadata"]
    team.kubectl("delete", "service", "llama")
    wait_for(lambda: "llama" in team.names("service"), "its own Service")
    wait_for(lambda: team.condition("llama", "Degraded")["status"] == "False", "no issue")


def test_operator_without_changes_sends_few_calls(
    cluster: ApiCluster, operator: OperatorProcess, team: Team
) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    time.sleep(4)
    before = cluster.audit_log.read_text().count("\n")
    time.sleep(8)
    events = map(json.loads, cluster.audit_log.read_text().splitlines()[before:])
    asked = Counter(
        f"{event['verb']} {event['objectRef']['resource']}"
        for event in events
        if event["userAgent"].startswith("OpenAPI-Generator")  # the operator's client
        and event["stage"] == "ResponseComplete"
        and event["verb"] != "watch"
    )
    # Keys that a person changes are taken over within ten seconds.
    regular = {"get leases", "update leases", "get secrets"}
    lists = {f"list {kind}" for kind in ("pods", "deployments", "services", "configmaps")}
    assert set(asked) - lists - {"list poddisruptionbudgets"} <= regular, asked
    assert 0 < asked["update leases"] <= 5
    served = team.kubectl("get", "macroinstances", "--all-namespaces", "--output=name").split()
    assert asked["get secrets"] <= len(served)


def test_invalid_spec_disturbs_no_other_and_can_be_corrected(
    operator: OperatorProcess, team: Team
) -> None:
    team.apply(emulated("fine"))
    team.wait_for_instances("fine", 3)
    # Without the webhook, the API server lets this one through.
    wrong = emulated("wrong", engine={"type": "vLLM", "args": {"maxNumSeqs": 9}})
    team.apply(wrong)
    wait_for(lambda: team.condition("wrong", "Degraded")["reason"] == "InvalidSpec", "a issue")
    assert team.instances("wrong") == set()
    team.kubectl("scale", "mi/fine", "--replicas=4")
    team.wait_for_instances("fine", 4)
    team.apply(emulated("wrong", engine={"type": "vLLM", "args": None}))
    team.wait_for_instances("wrong", 3)
    wait_for(lambda: team.condition("wrong", "Degraded")["status"] == "False", "no issue")


def test_refused_pod_is_reported_in_a_condition(operator: OperatorProcess, team: Team) -> None:
    container = {"name": "sidecar"}
    team.apply(emulated("llama", template={"spec": {"containers": [container]}}))
    wait_for(lambda: team.condition("llama", "Degraded")["status"] == "True", "a issue")
    message = team.condition("llama", "Degraded")["message"]
    assert "containers[1].image" in message, message
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    wait_for(lambda: team.condition("llama", "Degraded")["status"] == "False", "no issue")


def test_operator_among_many_writers_converges(operator: OperatorProcess, team: Team) -> None:
    team.kubectl("create", "-f", "-", input=yaml.safe_dump(emulated("llama")))

    def annotate(number: int) -> None:
        for what in ("mi/llama", "deployment/llama-head", "pod/llama-instance-0"):
            try:
                team.kubectl("annotate", "--overwrite", what, f"storm={number}")
            except KubectlError as error:
                assert "not found" in error.stderr.lower(), error.stderr

    with repeating(annotate):
        team.wait_for_instances("llama", 3)
        team.kubectl("scale", "mi/llama", "--replicas=5")
        team.wait_for_instances("llama", 5)
        team.kubectl("delete", "mi", "llama", "--wait=false")
        wait_for(lambda: team.get("mi", "llama") is None, "its end")


def test_deletion_leaves_no_object(operator: OperatorProcess, team: Team) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    assert (team.get("mi", "llama") or {})["metadata"]["finalizers"] == ["macroserve.io/drain"]
    team.kubectl("delete", "mi", "llama", "--timeout=20s")
    wait_for(lambda: not team.instances("llama"), "the end of its pods")
    # The garbage collector of this old Kubernetes looks for new kinds of owners twice a minute.
    wait_for(lambda: not team.items(OWNED), "the end of all its objects", 60)


def test_namespace_deletion_is_not_held_up(
    cluster: ApiCluster, operator: OperatorProcess, team: Team
) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    cluster.kubectl("delete", "namespace", team.name, "--timeout=60s")


def test_macroinstance_created_again_under_its_name_is_new(
    operator: OperatorProcess, team: Team
) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    first = (team.get("mi", "llama") or {})["metadata"]["uid"]
    team.kubectl("delete", "mi", "llama", "--timeout=20s")
    team.apply(emulated("llama", 2))

    def begins_anew() -> bool:
        pods = _instance_pods(team)
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods}
        return len(pods) == 2 and first not in owners

    wait_for(begins_anew, "two pods of the second one", 60)


def test_operator_answers_probes_and_exports_metrics(operator: OperatorProcess, team: Team) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    assert operator.lives
    for metric in (
        "macroserve_operator_reconciles_total",
        "macroserve_operator_reconcile_seconds_count",
        'macroserve_operator_api_calls_total{verb="create"}',
        "macroserve_operator_macroinstances",
        "macroserve_operator_reaction_seconds_bucket",
    ):
        assert metric in operator.metrics


def test_spec_has_no_field_owned_by_the_operator(operator: OperatorProcess, team: Team) -> None:
    team.apply(emulated("llama"))
    team.wait_for_instances("llama", 3)
    found = team.get("mi", "llama") or {}
    ours = [
        entry
        for entry in found["metadata"]["managedFields"]
        if entry["manager"] == "macroserve-operator"
    ]
    assert ours
    assert not any("f:spec" in entry["fieldsV1"] for entry in ours)


def test_pod_that_fails_by_its_device_is_created_again_without_that_node(
    operator: OperatorProcess, team: Team
) -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    team.apply(emulated("llama", 2, template={"spec": {"affinity": affinity}}))
    team.wait_for_instances("llama", 2)
    pod, other = "llama-instance-0", "llama-instance-1"
    _bind(team, pod, "gpu-7")
    # One that waits for a node would be made anew, too.
    _bind(team, other, "gpu-8")
    found = team.get("pod", pod) or {}
    cause = {"exitCode": 1, "message": "CUDA error: uncorrectable ECC error encountered"}
    engine = {
        "name": "engine",
        "image": "engine:1",
        "imageID": "",
        "ready": False,
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": cause},
    }
    found["status"] |= {"containerStatuses": [engine]}
    path = _path(team, pod)
    team.kubectl("replace", "--raw", f"{path}/status", "-f", "-", input=json.dumps(found))

    def replacement() -> dict[str, Any] | None:
        others = [each for each in _instance_pods(team) if each["metadata"]["name"] > pod]
        return next((p for p in others if p["metadata"]["name"] != other), None)

    wait_for(replacement, "another pod in its place")
    new = replacement() or {}
    (term,) = new["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    excluded = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-7"]}
    assert term == {"matchExpressions": [zone], "matchFields": [excluded]}
    (avoided,) = (team.get("mi", "llama") or {})["status"]["avoidedNodes"]
    assert (avoided["node"], avoided["instance"]) == ("gpu-7", "instance-0")
    assert "deletionTimestamp" not in (team.get("pod", other) or {})["metadata"]
    wait_for(lambda: "NodeAvoided" in team.event_reasons("llama"), "its event")


def _path(team: Team, pod: str) -> str:
    return f"/api/v1/namespaces/{team.name}/pods/{pod}"


def _bind(team: Team, pod: str, node: str) -> None:
    """Bind the pod to the node, as a scheduler does."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"{_path(team, pod)}/binding"
    team.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(binding))
