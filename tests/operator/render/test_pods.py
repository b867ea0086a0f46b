"""The pods of a MacroInstance run safely, and are replaced only when they must be."""

import json
from typing import Any

import pytest
from support.fake_deployment import resource
from support.rendered_pods import container, context, pods

from macroserve.api.manifest import parse
from macroserve.core.status import Pool
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import CERTIFICATE, DEPLOYMENT, ClusterKinds
from macroserve.operator.render import children, head, ingress, instance, shared
from macroserve.operator.render.context import RenderContext, digest
from macroserve.operator.render.served_tls import PLAIN, ServedTls

TLS = ServedTls(enabled=True)
MODEL = {"source": "tiny", "maxModelLen": 2048}


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in container(pod)["env"]}


def revisions(of: RenderContext) -> dict[str, str]:
    return {
        component: pod["metadata"]["annotations"][names.REVISION]
        for component, pod in pods(of).items()
    }


@pytest.mark.parametrize("component", ["head", "ingress", "instance"])
class TestEveryPod:
    def test_pod_runs_its_part(self, component: str) -> None:
        args = container(pods(context())[component])["args"]
        file = "/etc/macroserve/manifest/macroinstance.json"
        assert args[:4] == ["run", component, "-f", file]

    def test_pod_with_tls_has_the_certificate_without_the_authoritys_key(
        self, component: str
    ) -> None:
        pod = pods(context(tls=TLS))[component]
        args = container(pod)["args"]
        assert args[args.index("--tls") + 1] == "/etc/macroserve/tls"
        assert pod["metadata"]["labels"]["macroserve.io/tls"] == "true"
        (mount,) = [m for m in container(pod)["volumeMounts"] if m["mountPath"].endswith("/tls")]
        # A mount of a single file would never change.
        assert mount["readOnly"] and "subPath" not in mount
        (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == mount["name"]]
        assert volume["secret"]["secretName"] == "llama-served-tls"
        assert volume["secret"]["defaultMode"] == 0o440
        items = {item["key"]: item["path"] for item in volume["secret"]["items"]}
        assert items == {name: name for name in ("tls.crt", "tls.key", "ca.crt")}

    def test_pod_without_tls_mentions_none(self, component: str) -> None:
        pod = pods(context())[component]
        assert "tls" not in json.dumps(pod).lower()
        assert "scheme" not in json.dumps(pod)

    def test_pod_is_replaced_when_tls_is_enabled(self, component: str) -> None:
        assert revisions(context(tls=TLS))[component] != revisions(context())[component]

    def test_pod_is_confined(self, component: str) -> None:
        spec = pods(context())[component]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }

    def test_pod_can_write_to_its_scratch_folders(self, component: str) -> None:
        pod = pods(context())[component]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container(pod)["volumeMounts"]}
        assert "emptyDir" in volumes[mounts["/tmp"]["name"]]
        assert "emptyDir" in volumes[mounts["/var/cache/macroserve"]["name"]]
        for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME"):
            assert env(pod)[name]["value"].startswith("/var/cache/macroserve/")

    def test_pod_has_its_files_and_its_address(self, component: str) -> None:
        pod = pods(context())[component]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container(pod)["volumeMounts"]}
        manifest = volumes[mounts["/etc/macroserve/manifest"]["name"]]
        tokens = volumes[mounts["/etc/macroserve/tokens"]["name"]]
        assert manifest["configMap"]["name"] == "llama-manifest"
        assert tokens["secret"]["secretName"] == "llama-tokens"
        assert env(pod)["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"

    def test_pod_has_the_keys_of_its_role_alone(self, component: str) -> None:
        seen = {
            "head": {"handles", "cells", "routing", "orders", "control", "admin-token"},
            "ingress": {"cells", "routing", "generation"},
            "instance": {"handles", "generation", "control"},
        }
        (tokens,) = [
            volume["secret"]
            for volume in pods(context())[component]["spec"]["volumes"]
            if volume.get("secret", {}).get("secretName") == "llama-tokens"
        ]
        assert {item["path"] for item in tokens["items"]} == seen[component]
        held = shared.tokens(context())["stringData"]
        assert {item["key"] for item in tokens["items"]} <= held.keys() - {"secret"}

    def test_pod_mounts_its_keys_as_folders_that_update(self, component: str) -> None:
        mounts = container(pods(context())[component])["volumeMounts"]
        assert not any("subPath" in mount for mount in mounts)

    def test_pod_leaves_a_lost_node_after_ten_seconds(self, component: str) -> None:
        tolerations = pods(context())[component]["spec"]["tolerations"]
        assert {(t["key"], t["tolerationSeconds"]) for t in tolerations} == {
            ("node.kubernetes.io/not-ready", 10),
            ("node.kubernetes.io/unreachable", 10),
        }

    @pytest.mark.parametrize(
        ("changed", "is_replaced"),
        [
            ({"instances": 5}, False),
            ({"mitosis": {"lowerBound": 3, "upperBound": 9}}, False),
            ({"priority": {"highPriorityRatio": 0.5}}, False),
            ({"autoscaling": {"minInstances": 1, "maxInstances": 9}}, False),
            ({"ingress": {"replicas": 5}}, False),
            ({"engine": {"type": "Emulated", "tensorParallel": 1}}, False),
            ({"slo": {"ttft": "3s", "tpot": "100ms"}}, True),
            ({"scheduling": {"strategy": "vllm"}}, True),
            ({"model": {"source": "tiny", "maxModelLen": 4096}}, True),
            ({"model": {**MODEL, "adapters": [{"name": "a", "source": "b"}]}}, True),
        ],
    )
    def test_pod_is_replaced_when_its_start_options_change(
        self, component: str, changed: dict[str, Any], is_replaced: bool
    ) -> None:
        before, after = (
            revisions(context())[component],
            revisions(context(**changed))[component],
        )
        assert (before != after) is is_replaced

    def test_pod_is_replaced_for_another_image(self, component: str) -> None:
        other = context(image="registry.local/engine:2")
        assert revisions(other)[component] != revisions(context())[component]


def test_fields_with_defaults_left_out_replace_no_pod() -> None:
    written = {
        "model": {"source": "tiny", "maxModelLen": 2048},
        "engine": {"type": "Emulated"},
        "slo": {"ttft": 2.0, "tpot": 0.1},
    }
    assert context().revision({}) == digest({"spec": written, "pod": {}})


def test_probes_ask_what_the_parts_answer() -> None:
    asked = {
        component: {
            kind: (probe["httpGet"]["path"], probe["httpGet"]["port"])
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
            for probe in [container(pod)[kind]]
        }
        for component, pod in pods(context()).items()
    }
    for component, port, ready in (
        ("head", "control", "/ready"),
        ("ingress", "private", "/ready"),
        ("instance", "control", "/health"),
    ):
        assert asked[component] == {
            "startupProbe": ("/health", port),
            "readinessProbe": (ready, port),
            "livenessProbe": ("/health", port),
        }


def test_probes_ask_by_tls_where_it_is_served() -> None:
    schemes = {
        component: {
            container(pod)[kind]["httpGet"].get("scheme")
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        }
        for component, pod in pods(context(tls=TLS)).items()
    }
    assert schemes == {"head": {"HTTPS"}, "ingress": {None}, "instance": {"HTTPS"}}


@pytest.mark.parametrize(("tls", "scheme"), [(PLAIN, "http"), (TLS, "https")])
def test_ingress_calls_the_head_by_its_scheme(tls: ServedTls, scheme: str) -> None:
    args = container(pods(context(tls=tls))["ingress"])["args"]
    assert args[args.index("--head") + 1] == f"{scheme}://llama-head:8100"


def test_certificate_with_an_issuer_is_applied_before_the_pods() -> None:
    issued = ServedTls(enabled=True, issuer_ref={"name": "team"})
    kinds = [kind for kind, _ in children(context(tls=issued), ClusterKinds())]
    assert kinds.index(CERTIFICATE) < kinds.index(DEPLOYMENT)
    for other in (TLS, ServedTls(enabled=False, issuer_ref={"name": "team"})):
        assert CERTIFICATE not in [kind for kind, _ in children(context(tls=other), ClusterKinds())]


def test_ports_of_services_are_those_of_pods() -> None:
    of = context()
    for service, pod in (
        (head.service(of), pods(of)["head"]),
        (ingress.service(of), pods(of)["ingress"]),
        (instance.service(of), pods(of)["instance"]),
    ):
        ports = {port["name"]: port["containerPort"] for port in container(pod)["ports"]}
        (exposed,) = service["spec"]["ports"]
        assert ports[exposed["targetPort"]] == exposed["port"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_instance_knows_its_name_and_follows_its_labels() -> None:
    pod = pods(context())["instance"]
    assert pod["metadata"]["name"] == "llama-instance-3"
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/name": "macroserve",
        "app.kubernetes.io/managed-by": "macroserve-operator",
        "macroserve.io/macroinstance": "llama",
        "macroserve.io/component": "instance",
        "macroserve.io/instance": "instance-3",
        "macroserve.io/cell": "cell-1",
        "macroserve.io/pool": "hp",
    }
    for name, label in (("MACROSERVE_INSTANCE", "instance"), ("MACROSERVE_POOL", "pool")):
        path = env(pod)[name]["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == f"metadata.labels['macroserve.io/{label}']"


def test_instances_differ_in_nothing_that_would_replace_them() -> None:
    of = context()
    one = instance.instance_pod(of, "instance-0", "cell-0", Pool.LP)
    other = instance.instance_pod(of, "instance-9", "cell-2", Pool.HP)
    annotation = one["metadata"]["annotations"][names.REVISION]
    assert annotation == other["metadata"]["annotations"][names.REVISION] == instance.revision(of)
    assert one["spec"] == other["spec"]


def test_instances_prefer_different_nodes() -> None:
    affinity = pods(context())["instance"]["spec"]["affinity"]["podAntiAffinity"]
    (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == {
        "macroserve.io/macroinstance": "llama",
        "macroserve.io/component": "instance",
    }


def test_devices_are_asked_for_by_the_template_alone() -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
    template = {"spec": {"containers": [{"name": "engine", **gpu}]}}
    real = {"engine": {"type": "vLLM", "tensorParallel": 4}}
    asked = container(pods(context(**real, template=template))["instance"])["resources"]
    assert asked["limits"].pop("memory")
    assert asked == {"requests": {"memory": "2Gi"}, **gpu["resources"]}
    without = container(pods(context(**real))["instance"])["resources"]
    assert without["limits"].keys() == {"memory"}
    assert without["requests"] == {"memory": "2Gi"}
    emulated = container(pods(context())["instance"])["resources"]
    assert emulated == {**instance.EMULATED_RESOURCES, "limits": {"memory": "4Gi"}}


@pytest.mark.parametrize(
    ("template", "replaced"),
    [
        ({"spec": {"nodeSelector": {"gpu": "l20"}}}, {"instance"}),
        ({"metadata": {"labels": {"team": "a"}}}, {"instance"}),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "b"}]}]}},
            {"instance", "ingress"},
        ),
        ({"spec": {"tolerations": [{"key": "gpu"}]}}, {"head", "ingress", "instance"}),
    ],
)
def test_template_replaces_only_the_pods_that_it_changes(
    template: dict[str, Any], replaced: set[str]
) -> None:
    before, after = revisions(context()), revisions(context(template=template))
    assert {component for component in before if before[component] != after[component]} == replaced


def test_stream_interval_replaces_the_ingress_alone() -> None:
    before, after = revisions(context()), revisions(context(ingress={"streamInterval": 4}))
    assert {each for each in before if before[each] != after[each]} == {"ingress"}


def test_ingress_rolls_out_without_a_gap_and_the_head_alone() -> None:
    of = context()
    assert head.deployment(of)["spec"]["strategy"] == {"type": "Recreate"}
    spec = ingress.deployment(of)["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize("component", ["ingress", "head"])
def test_template_of_a_component_changes_its_pods_alone(component: str) -> None:
    engine = {"name": "engine", "resources": {"requests": {"cpu": "2"}}}
    own = {"nodeSelector": {"pool": "cpu"}, "priorityClassName": "high", "containers": [engine]}
    given = {"template": {"metadata": {"labels": {"team": "a"}}, "spec": own}}
    before, after = context(), context(**{component: given})
    changed = {each for each in pods(before) if pods(before)[each] != pods(after)[each]}
    assert changed == {component}
    pod = pods(after)[component]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert pod["spec"]["priorityClassName"] == "high"
    assert container(pod)["resources"]["requests"]["cpu"] == "2"
    assert container(pod)["args"] == container(pods(before)[component])["args"]


def test_template_of_the_ingress_comes_after_the_instances() -> None:
    everywhere = {"spec": {"tolerations": [{"key": "gpu", "effect": "NoSchedule"}]}}
    own = {"spec": {"tolerations": [{"key": "gpu", "effect": "NoExecute"}]}}
    pod = pods(context(template=everywhere, ingress={"template": own}))["ingress"]
    effects = [t["effect"] for t in pod["spec"]["tolerations"] if t["key"] == "gpu"]
    assert effects == ["NoSchedule", "NoExecute"]


def test_ingress_with_bounds_has_an_autoscaler() -> None:
    assert ingress.autoscalers(context(ingress={"replicas": 3})) == []
    assert ingress.autoscalers(context(ingress={"maxReplicas": 2})) == []
    (found,) = ingress.autoscalers(context(ingress={"maxReplicas": 6}))
    deployment = ingress.deployment(context())
    assert found["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert (found["spec"]["minReplicas"], found["spec"]["maxReplicas"]) == (2, 6)


def test_deployment_of_the_ingress_leaves_its_number_of_replicas_open() -> None:
    # To stop applying the field would reset it to one when an autoscaler takes over.
    assert "replicas" not in ingress.deployment(context(ingress={"replicas": 3}))["spec"]


def test_api_keys_are_mounted_where_they_are_asked_for() -> None:
    with_keys = pods(context(ingress={"replicas": 1, "apiKeysSecret": "keys"}))
    mounted = {
        component
        for component, pod in with_keys.items()
        if any(m["mountPath"] == "/etc/macroserve/api-keys" for m in container(pod)["volumeMounts"])
    }
    assert mounted == {"ingress"}
    volumes = with_keys["ingress"]["spec"]["volumes"]
    assert {"secretName": "keys", "defaultMode": 0o440} in [v.get("secret") for v in volumes]


def test_manifest_is_as_applied_without_status() -> None:
    document = resource(5) | {"status": {"instances": 5}}
    of = RenderContext(parse(resource(5)), document, "team", "uid-llama", "image", "Always")
    data = shared.config_map(of)["data"]["macroinstance.json"]
    assert json.loads(data) == {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": "llama", "namespace": "team"},
        "spec": document["spec"],
    }


def test_tokens_are_random_and_long() -> None:
    one, other = (shared.tokens(context())["stringData"] for _ in range(2))
    values = [*one.values(), *other.values()]
    assert {"secret", "admin-token"} <= set(one)
    assert len(set(values)) == 2 * len(one)
    assert all(len(value) >= 40 for value in values)


def test_rendered_objects_have_an_owner_and_labels() -> None:
    for kind, obj in children(context(), ClusterKinds()):
        metadata = obj["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == (
            "MacroInstance",
            "llama",
            "uid-llama",
        ), kind
        assert owner["controller"] and owner["blockOwnerDeletion"]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "macroserve-operator"
        assert metadata["labels"][names.MACROINSTANCE] == "llama"
        assert metadata["namespace"] == "team"
