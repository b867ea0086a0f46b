"""The chart gives its pods no more rights than they need."""

import base64
import ssl
from pathlib import Path

import pytest
from support.chart import NAMESPACE, Object, Rendered, at, render

POD_KEYS = {
    "serviceAccountName",
    "automountServiceAccountToken",
    "securityContext",
    "affinity",
    "containers",
    "restartPolicy",
    "volumes",
}
"""Of a pod's spec by default: no host namespaces, no host paths."""

READ_ONLY = {"get", "list", "watch"}
WRITES = {"create", "update", "patch", "delete"}
USERS = ("ClusterRole/macroserve-view", "ClusterRole/macroserve-edit")


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render()


def rules(rendered: Rendered) -> list[tuple[str, Object]]:
    return [
        (key, rule)
        for key, found in rendered.objects.items()
        if key.startswith(("ClusterRole/", "Role/"))
        for rule in found["rules"]
    ]


def test_pods_are_restricted(rendered: Rendered) -> None:
    pods = dict(rendered.pod_specs())
    assert len(pods) == 3
    for key, spec in pods.items():
        assert spec.keys() <= POD_KEYS, key
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, key
        assert context["runAsUser"] == context["runAsGroup"] == 65532, key
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, key
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, key
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), key
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), key


def test_pods_mount_only_secrets_read_only_and_small_scratch(rendered: Rendered) -> None:
    for key, spec in rendered.pod_specs():
        for volume in spec["volumes"]:
            kinds = volume.keys() - {"name"}
            assert kinds <= {"secret", "emptyDir"}, key
            assert "emptyDir" not in kinds or volume["emptyDir"]["sizeLimit"], key
        secrets = {volume["name"] for volume in spec["volumes"] if "secret" in volume}
        for mount in spec["containers"][0]["volumeMounts"]:
            assert mount["name"] not in secrets or mount["readOnly"] is True, key


def test_pods_that_call_no_api_get_no_token(rendered: Rendered) -> None:
    tokens = {key: spec["automountServiceAccountToken"] for key, spec in rendered.pod_specs()}
    assert tokens == {
        "Deployment/macroserve-operator": True,
        "Job/macroserve-release": True,
        "Pod/macroserve-test": False,
    }
    for key, found in rendered.objects.items():
        if key.startswith("ServiceAccount/"):
            assert found["automountServiceAccountToken"] is False


def test_rbac_rules_have_no_wildcard_and_no_escalation(rendered: Rendered) -> None:
    for key, rule in rules(rendered):
        words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not [word for word in words if "*" in word], key
        assert set(rule["verbs"]) <= READ_ONLY | WRITES | {"deletecollection"}, key
        assert set(rule["apiGroups"]) <= {
            "",
            "apps",
            "autoscaling",
            "coordination.k8s.io",
            "macroserve.io",
            "networking.k8s.io",
            "policy",
        }, key
        forbidden = {"nodes", "pods/exec", "serviceaccounts/token", "clusterroles", "namespaces"}
        assert not forbidden & set(rule["resources"]), key


def test_secrets_cannot_be_listed(rendered: Rendered) -> None:
    for key, rule in rules(rendered):
        if "secrets" in rule["resources"]:
            assert not {"list", "watch"} & set(rule["verbs"]), key


def test_operator_never_deletes_or_replaces_a_macroinstance(rendered: Rendered) -> None:
    for key, rule in rules(rendered):
        if key not in USERS and "macroinstances" in rule["resources"]:
            assert not {"create", "update", "delete", "deletecollection"} & set(rule["verbs"]), key


def test_leases_are_only_touched_in_the_operators_namespace(rendered: Rendered) -> None:
    holders = {key for key, rule in rules(rendered) if "leases" in rule["resources"]}
    assert holders == {"Role/macroserve-operator"}
    for rule in rendered["Role/macroserve-operator"]["rules"]:
        # A name cannot be demanded of what does not exist yet.
        assert rule["verbs"] == ["create"] or rule["resourceNames"] == ["macroserve-operator"]


def test_role_bindings_give_their_own_role_to_their_own_account(rendered: Rendered) -> None:
    for key, found in rendered.objects.items():
        if "Binding/" in key:
            name = key.rpartition("/")[2]
            assert found["roleRef"]["name"] == name
            assert f"{found['roleRef']['kind']}/{name}" in rendered.objects
            assert found["subjects"] == [
                {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
            ]


def test_webhooks_certificate_is_trusted_for_its_service(
    rendered: Rendered, tmp_path: Path
) -> None:
    """An API server's side and the operator's side of a TLS handshake, with what is rendered."""
    secret = rendered["Secret/macroserve-operator-webhook"]["data"]
    for name, value in secret.items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    for webhook in rendered["ValidatingWebhookConfiguration/macroserve-operator"]["webhooks"]:
        service = webhook["clientConfig"]["service"]
        authority = base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
        host = f"{service['name']}.{service['namespace']}.svc"
        client = ssl.create_default_context(cadata=authority)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        _shake_hands(client, server, host)
        with pytest.raises(ssl.SSLCertVerificationError):
            _shake_hands(client, server, "another.svc")
        with pytest.raises(ssl.SSLCertVerificationError):
            _shake_hands(ssl.create_default_context(), server, host)


def test_install_has_secrets_of_its_own() -> None:
    one, two = render(), render()
    for key in ("Secret/macroserve-operator-webhook", "Secret/macroserve-operator-alerts"):
        assert one[key]["data"].values() != two[key]["data"].values()
    token = base64.b64decode(one["Secret/macroserve-operator-alerts"]["data"]["token"])
    assert len(token) == 48


def test_webhook_reviews_writes_to_macroinstances_and_their_scale(rendered: Rendered) -> None:
    webhooks = rendered["ValidatingWebhookConfiguration/macroserve-operator"]["webhooks"]
    reviewed = {
        webhook["rules"][0]["resources"][0]: (
            webhook["clientConfig"]["service"]["path"],
            webhook["rules"][0]["operations"],
        )
        for webhook in webhooks
    }
    assert reviewed == {
        "macroinstances": ("/validate", ["CREATE", "UPDATE"]),
        "macroinstances/scale": ("/validate-scale", ["UPDATE"]),
    }
    for webhook in webhooks:
        assert webhook["failurePolicy"] == "Fail"
        assert webhook["sideEffects"] == "None"
        assert webhook["admissionReviewVersions"] == ["v1"]
        assert at(webhook, "rules.0.apiGroups") == ["macroserve.io"]


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = 0
    while sides and waiting < 10:
        side = sides.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            sides.append(side)
            waiting += 1
    assert not sides
