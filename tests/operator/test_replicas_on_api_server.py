"""The operator's replicas run on a real API server and elect a leader."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import ApiCluster
from support import crd
from support.operator_process import OperatorProcess, emulated, wait_for
from support.team import Team

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def alone() -> Iterator[ApiCluster]:
    with ApiCluster() as cluster:
        cluster.apply_crd(crd.PATH)
        yield cluster


def test_killed_leader_is_replaced_in_time(alone: ApiCluster, tmp_path: Path) -> None:
    team = Team(alone)
    with (
        OperatorProcess(alone.kubeconfig, tmp_path, "operator-0") as first,
        OperatorProcess(alone.kubeconfig, tmp_path, "operator-1") as second,
    ):
        wait_for(lambda: first.leads or second.leads, "a leader")
        time.sleep(3)
        assert first.leads != second.leads
        leader, other = (first, second) if first.leads else (second, first)
        assert other.lives
        team.apply(emulated("llama"))
        team.wait_for_instances("llama", 3)
        leader.kill()
        killed = time.monotonic()
        team.kubectl("scale", "mi/llama", "--replicas=4")
        team.wait_for_instances("llama", 4)
        assert time.monotonic() - killed < 15
        assert other.leads


def test_stopped_leader_is_replaced_at_once(alone: ApiCluster, tmp_path: Path) -> None:
    with (
        OperatorProcess(alone.kubeconfig, tmp_path, "operator-0") as first,
        OperatorProcess(alone.kubeconfig, tmp_path, "operator-1") as second,
    ):
        wait_for(lambda: first.leads or second.leads, "a leader")
        leader, other = (first, second) if first.leads else (second, first)
        leader.__exit__()
        wait_for(lambda: other.leads, "the other one leads", 5)


def test_replicas_survive_an_outage_of_the_api_server(alone: ApiCluster, tmp_path: Path) -> None:
    team = Team(alone)
    with OperatorProcess(alone.kubeconfig, tmp_path) as process:
        wait_for(lambda: process.leads, "a leader")
        team.apply(emulated("llama"))
        team.wait_for_instances("llama", 3)
        alone.stop_apiserver()
        wait_for(lambda: not process.leads, "it stops leading", 12)
        assert process.lives
        alone.start_apiserver()
        team.kubectl("scale", "mi/llama", "--replicas=4")
        team.wait_for_instances("llama", 4, 30)
        assert process.lives
        assert "Traceback" not in process.log
        assert "/healthz" not in process.log, "every probe is told"


def test_macroinstance_after_an_uninstall_can_be_deleted(alone: ApiCluster, tmp_path: Path) -> None:
    team = Team(alone)
    with OperatorProcess(alone.kubeconfig, tmp_path):
        team.apply(emulated("llama"))
        team.wait_for_instances("llama", 3)
    subprocess.run(
        [sys.executable, "-m", "macroserve.operator.apply.remove_finalizers"],
        env={"KUBECONFIG": str(alone.kubeconfig)},
        check=True,
    )
    team.kubectl("delete", "mi", "llama", "--timeout=5s")
