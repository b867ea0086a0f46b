"""`python -m cluster` starts and stops a cluster, also after a kill, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import places
from cluster.processes import wait_until

pytestmark = pytest.mark.e2e

TESTCLUSTER = Path(__file__).parents[1]
SYSCTLS = (
    "kernel/keys/root_maxbytes",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
)
FOLDERS = (
    "/etc/cni",
    "/opt/containerd",
    "/run/containerd",
    "/run/netns",
    "/run/xtables.lock",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/pods",
)
NODE_FOLDERS = (str(places.nodes_run()), "/run/cluster")
KEPT = ("images", "nodes", "nodes.lock", "tests-passed.json")
"""Files kept for the next cluster: images, the nodes' copies, and the record of these tests."""


def run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, cwd=TESTCLUSTER)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def command(*arguments: str) -> str:
    return run(sys.executable, "-m", "cluster", *arguments)


def traces() -> dict[str, object]:
    """Return all possible remains of a cluster on the machine."""
    rules = run("iptables-save") + run("ip6tables-save")
    return {
        "links": sorted(link.name for link in Path("/sys/class/net").iterdir()),
        "routes": run("ip", "route"),
        "rules": [line for line in rules.splitlines() if not line.startswith(("#", ":"))],
        "mounts": Path("/proc/mounts").read_text(),
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob("*/macroserve*")),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
        "folders": [folder for folder in FOLDERS if Path(folder).exists()],
        "processes": processes(*NODE_FOLDERS),
        "state": sorted(path.name for path in places.cache().iterdir() if path.name not in KEPT),
    }


def processes(*folders: str) -> list[str]:
    """Return the processes with a cluster's folder in their command line, like all of its own."""
    listed = run("ps", "-wweo", "args=").splitlines()
    return [line for line in listed if any(folder in line for folder in folders)]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Assert that no cluster runs before or after a test."""
    command("down")
    yield
    command("down")


def test_cluster_after_its_end_leaves_no_trace() -> None:
    before = traces()
    told = command("up")
    for step in ("API server", "CRD server", "node1", "node2", "Ready", "export KUBECONFIG="):
        assert step in told
    kubeconfig = told.partition("export KUBECONFIG=")[2].split()[0]
    kubectl = (str(places.binaries() / "kubectl"), f"--kubeconfig={kubeconfig}")
    assert "node2" in run(*kubectl, "get", "nodes")
    assert "up already" in refusal("up")

    keeper = int(run("pgrep", "-f", "cluster keep nodes"))
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: processes(*NODE_FOLDERS) == [], "all processes went with it", 20)
    command("up")
    run(*kubectl, "run", "web", "--image=registry.local/busybox:1", "--", "sleep", "1000")
    run(*kubectl, "wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
    command("down")
    assert traces() == before


def test_api_tier_is_started_and_stopped_by_command() -> None:
    told = command("up", "--tier", "api")
    kubeconfig = Path(told.partition("export KUBECONFIG=")[2].split()[0])
    folder = kubeconfig.parents[1]
    assert processes(str(folder)) != []
    assert "default" in run(
        str(places.binaries() / "kubectl"), f"--kubeconfig={kubeconfig}", "get", "namespaces"
    )
    command("down")
    assert not kubeconfig.exists()
    assert processes(str(folder)) == []


def refusal(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "cluster", *arguments],
        capture_output=True,
        text=True,
        cwd=TESTCLUSTER,
    )
    assert ended.returncode != 0
    return ended.stderr
