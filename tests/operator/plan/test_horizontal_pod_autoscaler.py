"""Kubernetes' own autoscaler uses the scale subresource if ``spec.autoscaling`` is absent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import ApiCluster
from support import crd
from support.external_metrics import ExternalMetrics
from support.operator_process import OperatorProcess, emulated, wait_for
from support.team import Team

pytestmark = pytest.mark.integration

WAITING_EACH = 10
DECIDES_S = 60
"""Its controller discovers new kinds twice a minute."""

AUTOSCALER = {
    "apiVersion": "autoscaling/v2beta2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "llama"},
    "spec": {
        "scaleTargetRef": {
            "apiVersion": "macroserve.io/v1alpha1",
            "kind": "MacroInstance",
            "name": "llama",
        },
        "minReplicas": 2,
        "maxReplicas": 6,
        "metrics": [
            {
                "type": "External",
                "external": {
                    "metric": {"name": "requests-waiting"},
                    "target": {"type": "AverageValue", "averageValue": str(WAITING_EACH)},
                },
            }
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    },
}


@pytest.fixture
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster(controllers=True) as cluster:
        cluster.apply_crd(crd.PATH)
        yield cluster


def test_horizontal_pod_autoscaler_scales_up_and_down(cluster: ApiCluster, tmp_path: Path) -> None:
    team = Team(cluster)
    with (
        OperatorProcess(cluster.kubeconfig, tmp_path),
        ExternalMetrics(cluster, tmp_path) as metrics,
    ):
        team.apply(emulated("llama", 2))
        team.wait_for_instances("llama", 2)
        metrics.values["requests-waiting"] = 5 * WAITING_EACH
        team.apply(AUTOSCALER)
        team.wait_for_instances("llama", 5, DECIDES_S)
        metrics.values["requests-waiting"] = 3 * WAITING_EACH
        team.wait_for_instances("llama", 3, DECIDES_S)

        def is_satisfied() -> bool:
            status = (team.get("hpa", "llama") or {})["status"]
            return status["currentReplicas"] == status["desiredReplicas"] == 3

        wait_for(is_satisfied, "it sees what it asks for", DECIDES_S)
        assert "ScaledUp" in team.event_reasons("llama")
