"""Cases run on an existing cluster: here the built one, by its kubeconfig."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import NodeCluster
from images import build_engine_image, build_operator_image

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
IMAGES = "registry.local/macroserve:e2e"
CASES = (
    "e2e/test_scaling.py::test_priority_ratio_changes_live",
    "e2e/test_bad_manifests.py",
    "e2e/test_chart.py::test_charts_own_test_passes",
    "e2e/test_failures.py::test_lost_node_has_its_pods_replaced",
    "e2e/test_failures.py::test_split_whose_operator_is_killed_is_completed",
    "e2e/test_used_rights.py",
)
NUM_PASSED = 4
REASONS = ("stop the kubelet of a node", "kill the processes of a pod", "show its audit log")


def test_cases_on_a_given_cluster_pass_or_name_what_it_lacks() -> None:
    if os.geteuid() != 0:
        pytest.skip("a cluster of real nodes needs root")
    with NodeCluster() as cluster:
        for archive in (build_operator_image(), build_engine_image()):
            cluster.import_image(archive)
        namespaces = names(cluster, "namespaces")
        told = run_cases(cluster)
        assert f"{NUM_PASSED} passed, {len(REASONS)} skipped" in told
        for reason in REASONS:
            assert re.search(rf"SKIPPED .*: this cluster cannot {reason}", told), told
        assert names(cluster, "namespaces") == namespaces, "cases leave a namespace"
        assert names(cluster, "clusterroles,validatingwebhookconfigurations", "macroserve") == set()


def run_cases(cluster: NodeCluster) -> str:
    """Return the output of the cases, which only get a kubeconfig and the images' names."""
    environment = os.environ | {
        "CLUSTER": "given",
        "KUBECONFIG": str(cluster.kubeconfig),
        "IMAGES": IMAGES,
        "PATH": f"{cluster.binaries}{os.pathsep}{os.environ['PATH']}",
    }
    options = ("-m", "not slow", "-n", "0", "-o", "timeout=600", "-p", "no:cacheprovider")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *CASES],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def names(cluster: NodeCluster, kinds: str, part_of: str = "") -> set[str]:
    """Return the names of the objects that are not being deleted."""
    labels = ("-l", f"app.kubernetes.io/part-of={part_of}") if part_of else ()
    items = json.loads(cluster.kubectl("get", kinds, "-o", "json", *labels))["items"]
    metadata = [item["metadata"] for item in items]
    return {found["name"] for found in metadata if "deletionTimestamp" not in found}
