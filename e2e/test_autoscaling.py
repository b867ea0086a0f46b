"""Autoscaling on real nodes, by real Prometheus and Alertmanager, without failed requests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Capability, Cluster
from world.kube import Kube
from world.monitoring import Monitoring, monitor
from world.release import NAMESPACE, Release
from world.served import Served, emulated
from world.traffic import Traffic
from world.waiting import eventually, throughout

pytestmark = [pytest.mark.e2e, pytest.mark.needs(Capability.POD_NETWORK)]

RULES = sorted((Path(__file__).parents[1] / "helm" / "macroserve" / "rules").glob("*.yaml"))
LOW, MISSING = "MacroserveSLOAttainmentLow", "MacroserveMetricsMissing"
DOWN_S = 40

# One instance serves four such prompts a second within the targets. Three instances must have spare
# capacity for the backlog from before their start, while its clients still wait.
LOAD = {"rate": 8.0, "prompt_tokens": 1900, "num_tokens": 8}

STRICT = {"ttft": "1s", "tpot": "100ms"}
PATIENT = {"ttft": "10s", "tpot": "500ms"}
ONE_CLASS = pytest.param(STRICT, "default", id="one-class")
TWO_CLASSES = pytest.param(
    {**PATIENT, "classes": [{"name": "interactive", **STRICT}]}, "interactive", id="two-classes"
)


@pytest.fixture
def monitoring(cluster: Cluster, release: Release) -> Iterator[Monitoring]:
    with monitor(cluster, RULES, NAMESPACE) as running:
        yield running


@pytest.fixture
def autoscaled(kube: Kube, monitoring: Monitoring, slo: dict[str, Any]) -> Served:
    """Return a MacroInstance with one instance and at most three; Alertmanager can reach the
    operator."""
    document = emulated(
        "llama",
        slo=slo,
        instances=1,
        mitosis={"lowerBound": 1, "upperBound": 4},
        autoscaling={
            "minInstances": 1,
            "maxInstances": 3,
            "stabilization": {"down": f"{DOWN_S}s"},
        },
    )
    served = Served(kube, document)
    served.apply()
    served.wait_for_instances(1)
    served.wait_for_condition("MetricsAvailable", timeout_s=150)
    return served


def target(served: Served) -> int:
    return served.status.get("targetInstances", 0)


def attainment(served: Served, slo_class: str) -> str:
    """Return the attainment of a class, or of a MacroInstance without classes."""
    status = served.status
    shown = {
        each["name"]: each for each in status.get("sloClasses", [{"name": "default", **status}])
    }
    return shown[slo_class].get("attainment", "")


@pytest.mark.slow
@pytest.mark.parametrize(("slo", "strict"), [ONE_CLASS, TWO_CLASSES])
def test_missed_targets_add_instances_and_calm_removes_them(
    autoscaled: Served, monitoring: Monitoring, strict: str
) -> None:
    """Requests of the class ``strict`` miss its targets, next to a few of the default class."""
    patient = Traffic(autoscaled.endpoint, rate=0.5)
    with patient, Traffic(autoscaled.endpoint, **LOAD, slo_class=strict) as traffic:
        eventually(lambda: strict in monitoring.classes(LOW, autoscaled.name), 90, every_s=1)
        # Even if the forecast was faster, the alert's arrival is reported.
        eventually(
            lambda: f"{LOW} fires" in autoscaled.describe(), 60, describe=autoscaled.describe
        )
        eventually(lambda: target(autoscaled) >= 2, 30, describe=autoscaled.describe)
        eventually(
            lambda: autoscaled.status["readyInstances"] >= 2, 90, describe=autoscaled.describe
        )
        eventually(lambda: LOW not in monitoring.firing(autoscaled.name), 150, every_s=1)
        met = traffic.complete
        traffic.after(100)
        late = sum(ttft_s > 1 for _, ttft_s in traffic.ttft_s[met:])
        assert late <= 0.1 * len(traffic.ttft_s[met:])
    assert not traffic.failures + patient.failures
    grown = target(autoscaled)
    with Traffic(autoscaled.endpoint, rate=1.0, slo_class=strict) as traffic:
        eventually(
            lambda: target(autoscaled) == 1,
            DOWN_S * 4 + 120,
            describe=autoscaled.describe,
            every_s=2,
        )
        autoscaled.wait_for_instances(1)
        traffic.after(5)
        eventually(lambda: attainment(autoscaled, strict) == "1.00", 90, every_s=2)
    assert not traffic.failures

    history = autoscaled.status["scalingHistory"]
    assert (history[0]["from"], history[-1]["to"]) == (1, 1)
    assert max(entry["to"] for entry in history) == grown
    assert len(history) <= 4, "it swings"
    assert {"ScaledUp", "ScaledDown"} <= set(autoscaled.kube.event_reasons(autoscaled.name))
    assert "Scaling History" in autoscaled.describe()


@pytest.mark.slow
@pytest.mark.parametrize("slo", [STRICT])
def test_autoscaler_without_metrics_holds_the_target_and_says_so(
    autoscaled: Served, monitoring: Monitoring
) -> None:
    autoscaled.kube.patch(
        "macroinstance",
        autoscaled.name,
        {"spec": {"instances": 2, "autoscaling": {"minInstances": 2}}},
    )
    autoscaled.wait_for_instances(2)
    monitoring.alertmanager.kill()
    condition = autoscaled.wait_for_condition("MetricsAvailable", "False", timeout_s=180)
    assert "Alertmanager" in condition["message"]
    autoscaled.kube.patch(
        "macroinstance",
        autoscaled.name,
        {"spec": {"instances": 1, "autoscaling": {"minInstances": 1}}},
    )
    throughout(
        lambda: target(autoscaled) == 2, DOWN_S + 30, describe=autoscaled.describe, every_s=2
    )
    monitoring.start_alertmanager()
    autoscaled.wait_for_condition("MetricsAvailable", timeout_s=150)
    eventually(lambda: target(autoscaled) == 1, DOWN_S + 60, describe=autoscaled.describe)
