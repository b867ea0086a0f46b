"""Manifests that cannot work are refused with a helpful message, or a condition has the cause.
Nothing else is disturbed, and a corrected manifest works."""

import subprocess

import pytest
from bad_manifests import Case, attempt, merged, refused_by
from cluster import Cluster
from world.kube import Kube
from world.served import Served, emulated
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = pytest.mark.e2e

CAUSE_TIMEOUT_S = 90
"""Enough for a second crash, after which a crash loop is reported."""


def _told(served: Served, case: Case) -> bool:
    """Return whether the condition has the cause."""
    degraded = served.condition("Degraded")
    reason = case.refused.partition("/")[2]
    return degraded["reason"] == reason and not case.missing_in(degraded["message"])


def test_bad_manifest_is_refused_by_the_cluster(
    kube: Kube, release: object, cluster: Cluster, subtests: pytest.Subtests
) -> None:
    for case in refused_by("schema", "cel", "strict", "admission"):
        with subtests.test(case.name):
            if case.before:
                kube.apply(case.before)
            with pytest.raises(subprocess.CalledProcessError) as refused:
                attempt(cluster.kubectl, kube.namespace, case)
            assert case.missing_in(refused.value.stderr) == [], refused.value.stderr


@pytest.mark.slow
def test_bad_manifest_that_only_the_cluster_can_judge_gets_a_condition(
    kube: Kube, subtests: pytest.Subtests
) -> None:
    """The bad manifests are changes of a MacroInstance that continues to serve."""
    served = Served(
        kube, emulated("llama", instances=1, mitosis={"lowerBound": 1, "upperBound": 4})
    )
    served.apply()
    served.wait_for_condition("Ready")
    with Traffic(served.endpoint) as traffic:
        for case in refused_by("Degraded"):
            if "model" in (case.create or {}).get("spec", {}):
                continue  # a model never changes
            with subtests.test(case.name):
                kube.apply(merged(served.document, case.create or {}))
                eventually(
                    lambda of=case: _told(served, of), CAUSE_TIMEOUT_S, describe=served.describe
                )
                served.apply()
                served.wait_for_condition("Degraded", "False")
                served.wait_for_instances(1)
    assert not traffic.failures


def test_model_that_cannot_be_loaded_is_named_in_a_condition(kube: Kube) -> None:
    (case,) = [case for case in refused_by("Degraded") if case.name == "a model that is not there"]
    served = Served(kube, case.document)
    served.apply()
    eventually(lambda: _told(served, case), CAUSE_TIMEOUT_S, describe=served.describe)
