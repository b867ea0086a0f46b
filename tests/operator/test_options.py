"""The operator reads its options from the environment."""

from pathlib import Path

import pytest

from macroserve.operator.admission.pod_policy import Allowance, PodPolicy
from macroserve.operator.options import OperatorOptions
from macroserve.operator.render.served_network import ServedNetwork
from macroserve.operator.render.served_tls import ServedTls


def test_options_from_the_charts_environment_are_read() -> None:
    options = OperatorOptions.from_env(
        {
            "MACROSERVE_ENGINE_IMAGE": "registry.local/engine:1",
            "MACROSERVE_ENGINE_IMAGE_PULL_POLICY": "Always",
            "POD_NAME": "macroserve-operator-0",
            "POD_NAMESPACE": "system",
            "MACROSERVE_NAMESPACES": "team-a,team-b",
            "MACROSERVE_POD_POLICY": '{"allow": ["hostPath"]}',
            "MACROSERVE_SERVED_NETWORK": '{"enabled": false}',
            "MACROSERVE_SERVED_TLS": '{"enabled": true, "issuerRef": {"name": "team"}}',
            "MACROSERVE_WEBHOOK_CERT_DIR": "/etc/macroserve/webhook",
            "MACROSERVE_ALERT_TOKEN_FILE": "/etc/macroserve/alerts/token",
        }
    )
    assert options == OperatorOptions(
        engine_image="registry.local/engine:1",
        engine_image_pull_policy="Always",
        identity="macroserve-operator-0",
        namespace="system",
        namespaces=("team-a", "team-b"),
        pod_policy=PodPolicy(allow=frozenset({Allowance.HOST_PATH})),
        served_network=ServedNetwork(enabled=False),
        served_tls=ServedTls(enabled=True, issuer_ref={"name": "team"}),
        webhook_cert_dir=Path("/etc/macroserve/webhook"),
        alert_token_file=Path("/etc/macroserve/alerts/token"),
    )


def test_options_outside_a_cluster_need_the_image_alone() -> None:
    options = OperatorOptions.from_env({"MACROSERVE_ENGINE_IMAGE": "e"})
    assert options.identity
    assert options.namespace == "default"
    assert options.namespaces == ()
    assert options.webhook_cert_dir is options.alert_token_file is None


def test_options_without_an_image_raise() -> None:
    with pytest.raises(ValueError, match="MACROSERVE_ENGINE_IMAGE must name"):
        OperatorOptions.from_env({})
