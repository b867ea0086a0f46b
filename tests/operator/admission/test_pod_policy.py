"""The policy accepts restricted pod templates, and others where an allowance is set."""

import json
from typing import Any

import pytest
import yaml
from support.chart import CHART, schema
from support.fake_deployment import resource

from macroserve.api.manifest import ManifestError
from macroserve.operator.admission import pod_policy
from macroserve.operator.admission.pod_policy import Allowance, PodPolicy
from macroserve.operator.admission.spec import admitted, review

RESTRICTED = PodPolicy()
PATH = "spec.template.spec"
SECURITY = "containers[engine].securityContext"
SOURCES = "volumes[v].projected.sources"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/engine"


def violations(template: dict[str, Any], policy: PodPolicy) -> tuple[str, ...]:
    return pod_policy.violations(template, policy, "spec.template")


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def engine(**fields: Any) -> dict[str, Any]:
    return spec(containers=[{"name": "engine", **fields}])


def security(**fields: Any) -> dict[str, Any]:
    return engine(securityContext=fields)


def volume(**source: Any) -> dict[str, Any]:
    return spec(volumes=[{"name": "v", **source}])


def projected(**source: Any) -> dict[str, Any]:
    return volume(projected={"sources": [source]})


GOOD: list[dict[str, Any]] = [
    {},
    spec(
        nodeSelector={"gpu": "l20"}, tolerations=[{"operator": "Exists"}], runtimeClassName="nvidia"
    ),
    spec(serviceAccountName="default", hostNetwork=False, hostPID=None),
    spec(imagePullSecrets=[{"name": "registry"}], priorityClassName="models"),
    spec(securityContext={"runAsUser": 1000, "fsGroup": 1000, "supplementalGroups": [44]}),
    spec(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
    spec(initContainers=[{"name": "fetch", "image": "x", "command": ["sh"]}]),
    engine(resources={"limits": {"nvidia.com/gpu": 4}}, ports=[{"containerPort": 9}]),
    engine(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "t"}}}]),
    engine(envFrom=[{"secretRef": {"name": "huggingface"}}, {"configMapRef": {"name": "any"}}]),
    engine(livenessProbe={"httpGet": {"path": "/", "port": 1}}),
    security(capabilities={"add": ["NET_BIND_SERVICE"]}, readOnlyRootFilesystem=False),
    volume(persistentVolumeClaim={"claimName": "models"}),
    volume(emptyDir={"medium": "Memory"}),
    volume(secret={"secretName": "hf"}),
    projected(configMap={"name": "any"}),
    {
        "metadata": {
            "annotations": {
                "container.apparmor.security.beta.kubernetes.io/engine": "runtime/default"
            }
        }
    },
]

ALLOWED_BY: list[tuple[dict[str, Any], str, Allowance]] = [
    (spec(hostNetwork=True), "hostNetwork", Allowance.HOST_NETWORK),
    (spec(hostPID=True), "hostPID", Allowance.HOST_PID),
    (spec(hostIPC=True), "hostIPC", Allowance.HOST_IPC),
    (spec(nodeName="node-1"), "nodeName", Allowance.NODE_NAME),
    (
        spec(priorityClassName="system-node-critical"),
        "priorityClassName",
        Allowance.SYSTEM_PRIORITY,
    ),
    (volume(hostPath={"path": "/"}), "volumes[v].hostPath", Allowance.HOST_PATH),
    (volume(nfs={"server": "s", "path": "/"}), "volumes[v].nfs", Allowance.OTHER_VOLUMES),
    (volume(csi={"driver": "d"}), "volumes[v].csi", Allowance.OTHER_VOLUMES),
    (volume(notYetKnown={}), "volumes[v].notYetKnown", Allowance.OTHER_VOLUMES),
    (projected(podCertificate={}), f"{SOURCES}.podCertificate", Allowance.OTHER_VOLUMES),
    (
        engine(ports=[{"containerPort": 8000, "hostPort": 80}]),
        "containers[engine].ports[8000].hostPort",
        Allowance.HOST_PORT,
    ),
    (
        engine(livenessProbe={"tcpSocket": {"host": "10.0.0.1", "port": 1}}),
        "containers[engine].livenessProbe.tcpSocket.host",
        Allowance.HOST_PROBES,
    ),
    (
        engine(lifecycle={"preStop": {"httpGet": {"host": "169.254.169.254", "port": 80}}}),
        "containers[engine].lifecycle.preStop.httpGet.host",
        Allowance.HOST_PROBES,
    ),
    (
        spec(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
        "securityContext.sysctls",
        Allowance.SYSCTLS,
    ),
    (spec(securityContext={"runAsUser": 0}), "securityContext.runAsUser", Allowance.ROOT),
    (security(runAsUser=0), f"{SECURITY}.runAsUser", Allowance.ROOT),
    (security(runAsNonRoot=False), f"{SECURITY}.runAsNonRoot", Allowance.ROOT),
    (
        spec(securityContext={"runAsNonRoot": None}),
        f"{SECURITY}.runAsNonRoot",
        Allowance.ROOT,
    ),
    (
        spec(securityContext={"seccompProfile": None}),
        "securityContext.seccompProfile.type",
        Allowance.UNCONFINED,
    ),
    (
        security(seccompProfile={"type": "Unconfined"}),
        f"{SECURITY}.seccompProfile.type",
        Allowance.UNCONFINED,
    ),
    (
        security(appArmorProfile={"type": "Unconfined"}),
        f"{SECURITY}.appArmorProfile.type",
        Allowance.UNCONFINED,
    ),
    (
        security(seLinuxOptions={"type": "spc_t"}),
        f"{SECURITY}.seLinuxOptions",
        Allowance.UNCONFINED,
    ),
    (
        security(procMount="Unmasked"),
        f"{SECURITY}.procMount",
        Allowance.UNCONFINED,
    ),
    (
        security(allowPrivilegeEscalation=None),
        f"{SECURITY}.allowPrivilegeEscalation",
        Allowance.PRIVILEGE_ESCALATION,
    ),
    (
        security(privileged=True),
        f"{SECURITY}.privileged",
        Allowance.PRIVILEGED,
    ),
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    (spec(serviceAccountName="ci-admin"), "serviceAccountName"),
    (spec(serviceAccount="ci-admin"), "serviceAccount"),
    (spec(automountServiceAccountToken=True), "automountServiceAccountToken"),
    (spec(automountServiceAccountToken=None), "automountServiceAccountToken"),
    (projected(serviceAccountToken={"path": "t"}), f"{SOURCES}.serviceAccountToken"),
    (volume(secret={"secretName": "db"}), "volumes[v].secret.secretName"),
    (volume(secret={"secretName": "hf-tokens"}), "volumes[v].secret.secretName"),
    (projected(secret={"name": "db"}), f"{SOURCES}.secret.name"),
    (
        engine(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]),
        "containers[engine].env[T].valueFrom.secretKeyRef.name",
    ),
    (engine(envFrom=[{"secretRef": {"name": "db"}}]), "containers[engine].envFrom.secretRef.name"),
    (security(capabilities={"add": ["SYS_ADMIN"]}), f"{SECURITY}.capabilities.add"),
    (security(capabilities=None), f"{SECURITY}.capabilities.drop"),
    (security(windowsOptions={"hostProcess": True}), f"{SECURITY}.windowsOptions"),
    (spec(ephemeralContainers=[{"name": "debug"}]), "ephemeralContainers"),
    (spec(notYetKnown=True), "notYetKnown"),
    (engine(notYetKnown=True), "containers[engine].notYetKnown"),
]


@pytest.mark.parametrize("template", GOOD, ids=str)
def test_restricted_template_is_accepted(template: dict[str, Any]) -> None:
    assert violations(template, RESTRICTED) == ()


@pytest.mark.parametrize(("template", "path", "allowance"), ALLOWED_BY, ids=str)
def test_template_that_needs_an_allowance_is_refused_without_it(
    template: dict[str, Any], path: str, allowance: Allowance
) -> None:
    (sentence,) = violations(template, RESTRICTED)
    assert sentence.startswith(f"{PATH}.{path} is ")
    assert sentence.endswith(f"does not list {allowance}.")
    assert violations(template, PodPolicy(allow=frozenset({allowance}))) == ()
    others = frozenset(Allowance) - {allowance}
    assert violations(template, PodPolicy(allow=others)) == (sentence,)


@pytest.mark.parametrize(("template", "path"), REFUSED, ids=str)
def test_other_identities_secrets_and_fields_are_refused(
    template: dict[str, Any], path: str
) -> None:
    (sentence,) = violations(template, PodPolicy(allow=frozenset(Allowance)))
    assert sentence.startswith(f"{PATH}.{path} ")
    assert sentence.endswith(".")


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_pod_policy_checks_every_container(field: str) -> None:
    bad = {"name": "sidecar", "securityContext": {"privileged": True}}
    (sentence,) = violations(spec(**{field: [{"name": "good"}, bad]}), RESTRICTED)
    assert sentence.startswith(f"{PATH}.{field}[sidecar].securityContext.privileged is true")


def test_annotation_that_unconfines_a_container_is_refused() -> None:
    (sentence,) = violations({"metadata": {"annotations": {APPARMOR: "unconfined"}}}, RESTRICTED)
    assert sentence.startswith(f"spec.template.metadata.annotations[{APPARMOR}] is 'unconfined'")


def test_service_accounts_that_are_listed_may_be_named_with_their_token() -> None:
    policy = PodPolicy(service_accounts=("models",))
    fields = {"serviceAccountName": "models", "automountServiceAccountToken": True}
    assert violations(spec(**fields), policy) == ()
    assert len(violations(spec(**fields | {"serviceAccountName": "default"}), policy)) == 1


def test_secrets_and_capabilities_that_are_listed_may_be_used() -> None:
    template = volume(secret={"secretName": "s3-models"})
    assert violations(template, PodPolicy(secrets=("s3-*",))) == ()
    added = security(capabilities={"add": ["IPC_LOCK"]})
    assert violations(added, PodPolicy(capabilities=("IPC_LOCK",))) == ()


@pytest.mark.parametrize("name", ["llama-tokens", "llama-served-tls"])
def test_tokens_and_keys_of_macroinstances_are_never_readable(name: str) -> None:
    template = volume(secret={"secretName": name})
    assert len(violations(template, PodPolicy(secrets=("*",)))) == 1


@pytest.mark.parametrize(
    "template",
    [
        {"spec": "text"},
        spec(securityContext="text", volumes=[7], initContainers={"a": 1}),
        engine(securityContext=[], env=7, ports=[None], lifecycle="x", envFrom=[{"secretRef": 1}]),
        {"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": None}}},
    ],
    ids=str,
)
def test_template_of_malformed_shape_raises_no_error(template: dict[str, Any]) -> None:
    assert isinstance(violations(template, RESTRICTED), tuple)


def test_admission_and_rendering_ask_the_same_policy() -> None:
    bad = resource(template=spec(hostNetwork=True))
    (sentence,) = review("CREATE", None, bad, "")
    assert sentence.startswith(f"{PATH}.hostNetwork is true")
    with pytest.raises(ManifestError) as refused:
        admitted(bad, RESTRICTED)
    assert refused.value.problems == (sentence,)
    policy = PodPolicy(allow=frozenset({Allowance.HOST_NETWORK}))
    assert review("CREATE", None, bad, "", policy) == ()
    assert admitted(bad, policy).name == "llama"


@pytest.mark.parametrize("part", ["ingress", "head"])
def test_template_of_another_component_meets_the_same_policy(part: str) -> None:
    bad = resource(**{part: {"template": spec(hostNetwork=True)}})
    (sentence,) = review("CREATE", None, bad, "")
    assert sentence.startswith(f"spec.{part}.template.spec.hostNetwork is true")
    good = spec(priorityClassName="serving", nodeSelector={"pool": "cpu"})
    assert review("CREATE", None, resource(**{part: {"template": good}}), "") == ()


def test_cache_in_a_folder_of_the_node_needs_the_policys_leave() -> None:
    bad = resource(model={"source": "tiny", "maxModelLen": 64, "cache": {"hostPath": "/models"}})
    assert review("CREATE", None, bad, "") == (
        "spec.model.cache.hostPath is '/models', must be left out: the operator's podPolicy.allow "
        "does not list hostPath.",
    )
    with pytest.raises(ManifestError):
        admitted(bad, RESTRICTED)
    policy = PodPolicy(allow=frozenset({Allowance.HOST_PATH}))
    assert review("CREATE", None, bad, "", policy) == ()


@pytest.mark.parametrize("cache", [{"claim": "models"}, {"image": "r/models:1"}])
def test_cache_in_another_volume_needs_nobodys_leave(cache: dict[str, str]) -> None:
    good = resource(model={"source": "tiny", "maxModelLen": 64, "cache": cache})
    assert review("CREATE", None, good, "") == ()


def test_pod_policy_from_json_has_its_values() -> None:
    text = '{"allow": ["hostPath"], "serviceAccounts": ["models"], "secrets": []}'
    policy = PodPolicy.from_json(text)
    assert policy.allow == {Allowance.HOST_PATH}
    assert policy.service_accounts == ("models",)
    assert policy.secrets == policy.capabilities == ()


@pytest.mark.parametrize("text", ['{"allow": ["everything"]}', '{"alow": []}', "[]", "x"])
def test_pod_policy_that_cannot_be_read_raises(text: str) -> None:
    with pytest.raises(ValueError):
        PodPolicy.from_json(text)


def test_pod_policy_allowances_and_defaults_equal_the_charts() -> None:
    operator = yaml.safe_load((CHART / "values.yaml").read_text())["operator"]
    assert PodPolicy.from_json(json.dumps(operator["podPolicy"])) == RESTRICTED
    known = schema()["properties"]["operator"]["properties"]["podPolicy"]["properties"]
    assert known["allow"]["items"]["enum"] == list(Allowance)
