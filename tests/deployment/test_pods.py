"""A deployment as pods run it, without Kubernetes: processes that know each other's addresses."""

import time
from collections.abc import Iterator

import grpc
import httpx
import psutil
import pytest
from support.deployment import manifest
from support.pods import ADMIN_TOKEN, HEAD_PORT, PORT, PRIVATE_PORT, SECRET, Pods, running
from support.pods_load import Load

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose

pytestmark = pytest.mark.integration

CELLS = Audience(Purpose.CELLS)


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    # Least load first, so that every instance has something to do.
    document = manifest(scheduling={"strategy": "vllm"})
    with running(tmp_path_factory.mktemp("pods"), document) as deployment:
        yield deployment


def num_running(pods: Pods, name: str) -> int:
    return pods.instances()[name]["status"]["num_running"]


def test_chat_is_streamed_by_every_ingress(pods: Pods) -> None:
    for name in ("ingress-0", "ingress-1"):
        assert pods.chat(name, num_tokens=20) == 20


def test_head_tells_of_cells_and_instances(pods: Pods) -> None:
    assert pods.ask_head("GET", "/admin/v1/cells")["running"] == ["cell-0"]
    assert {n: i["pool"] for n, i in pods.instances().items()} == {
        "instance-0": "lp",
        "instance-1": "lp",
        "instance-2": "hp",
    }
    url = pods.ask_head("GET", "/cells", token=pods.token(CELLS))["cells"]["cell-0"]
    assert url.startswith(f"http://{pods.pods['head'].address}:")


@pytest.mark.parametrize(
    ("method", "path", "token", "status"),
    [
        ("GET", "/cells", ADMIN_TOKEN, 401),
        ("GET", "/cells", SECRET, 401),
        ("GET", "/admin/v1/cells", SECRET, 401),
        ("GET", "/admin/v1/report", "wrong", 401),
        ("PUT", "/admin/v1/cells/cell-9", SECRET, 401),
        ("DELETE", "/admin/v1/cells/cell-0", SECRET, 401),
        ("GET", "/admin/v1/load", SECRET, 401),
        ("PUT", "/admin/v1/cells/ingress", ADMIN_TOKEN, 400),
        ("POST", "/admin/v1/cells/cell-9/adopt", ADMIN_TOKEN, 404),
        ("POST", "/admin/v1/cells/cell-0/adopt", ADMIN_TOKEN, 400),
        ("POST", "/admin/v1/migrate", ADMIN_TOKEN, 400),
    ],
)
def test_head_with_a_bad_request_refuses_it(
    pods: Pods, method: str, path: str, token: str, status: int
) -> None:
    with pytest.raises(httpx.HTTPStatusError) as refused:
        pods.ask_head(method, path, {}, token)
    assert refused.value.response.status_code == status
    assert pods.ask_head("GET", "/admin/v1/cells")["running"] == ["cell-0"]


def test_deploying_a_cell_again_and_deleting_none_change_nothing(pods: Pods) -> None:
    before = pods.ask_head("GET", "/cells", token=pods.token(CELLS))
    pods.ask_head("PUT", "/admin/v1/cells/cell-0")
    pods.ask_head("DELETE", "/admin/v1/cells/cell-7")
    assert pods.ask_head("GET", "/cells", token=pods.token(CELLS)) == before


def test_public_endpoint_has_no_admin_api(pods: Pods) -> None:
    address = pods.pods["ingress-0"].address
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    response = httpx.get(f"http://{address}:{PORT}/admin/v1/report", headers=headers)
    assert response.status_code == 404


def test_ray_runs_no_job_from_outside(pods: Pods) -> None:
    """The two HTTP servers alone listen at the pod's address; other listeners require a token of
    their own."""
    head = pods.pods["head"]
    processes = [
        psutil.Process(head.process.pid),
        *psutil.Process(head.process.pid).children(recursive=True),
    ]
    listening = [
        connection.laddr
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    reachable = [a for a in listening if a.ip.removeprefix("::ffff:") != "127.0.0.1"]
    assert sum(a.ip == head.address for a in reachable) == 2
    for port in [a.port for a in reachable if a.ip != head.address]:
        channel = grpc.insecure_channel(f"{head.address}:{port}")
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ray.serve.ASGIService/HandleRequest")(b"", timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_load_and_metrics_tell_what_was_asked_for(pods: Pods) -> None:
    with Load(pods) as load:
        load.after(100)
    assert load.failures == []
    # The last whole ten seconds may end before the last request.
    report = pods.wait_for(
        lambda: (
            (found := pods.ask_head("GET", "/admin/v1/load"))
            and sum(b["requests"] for b in found["buckets"]) >= load.complete
            and found
        )
    )
    assert [60, 60] in [[prompt, 60] for prompt, _ in report["lengths"]]
    assert len(report["coefficients"]) == 5 and report["model"]["num_layers"] == 32
    address = pods.pods["ingress-1"].address
    page = httpx.get(f"http://{address}:{PRIVATE_PORT}/macroserve/metrics").text
    labels = '{macroinstance="test",namespace="default",slo_class="default"}'
    assert f"macroserve_slo_attainment_target{labels} 0.9" in page
    cell = '{cell="cell-0",macroinstance="test",namespace="default"}'
    assert f"macroserve_cell_instances{cell} 3.0" in page
    busy = next(
        line for line in page.splitlines() if line.startswith("macroserve_cell_utilization{")
    )
    assert 0 < float(busy.rsplit(" ", 1)[1]) <= 1


def test_deployment_without_its_head_serves_until_another_comes(pods: Pods) -> None:
    with Load(pods) as load:
        load.after(30)
        pods.pods["head"].kill()
        load.after(150)
        # Elsewhere, as a pod that is made anew; the cells are there when it says that it is ready.
        head = pods.start_head(number=11)
        pods.wait_for(lambda: pods.is_ok(head, "/ready", HEAD_PORT))
        assert len(pods.instances()) == 3
        load.after(100)
    assert load.failures == []
    decisions = pods.ask_head("GET", "/admin/v1/report")["cells"][0]["decisions"]
    assert sum(decisions.values()) > 50, "the ingresses did not come back to the scheduler"


def test_instance_that_is_told_to_end_finishes_its_streams(pods: Pods) -> None:
    with Load(pods, num_tokens=200) as load:
        pods.wait_for(lambda: num_running(pods, "instance-0"))
        assert pods.pods["instance-0"].end() == 0
        load.after(50)
        assert set(pods.instances()) == {"instance-1", "instance-2"}
        pods.start_instance(0)
        pods.wait_for(lambda: pods.works(0))
        pods.adopt(0)
        pods.wait_for(lambda: num_running(pods, "instance-0"))
    assert load.failures == []


def test_instance_past_its_grace_ends_and_its_streams_go_on_elsewhere(pods: Pods) -> None:
    pods.pods["instance-1"].end()
    pods.start_instance(1, "lp", "--grace", "0.5")
    pods.wait_for(lambda: pods.works(1))
    pods.adopt(1)
    with Load(pods, rate=4, num_tokens=400) as load:
        pods.wait_for(lambda: num_running(pods, "instance-1"))
        began = time.monotonic()
        assert pods.pods["instance-1"].end() == 0
        assert time.monotonic() - began < 10
        pods.start_instance(1)
        pods.wait_for(lambda: pods.works(1))
        pods.adopt(1)
        load.after(20)
    assert load.failures == []


def test_killed_instance_comes_back_under_its_name(pods: Pods) -> None:
    with Load(pods) as load:
        load.after(20)
        pods.pods["instance-0"].kill()
        pods.start_instance(0)
        pods.wait_for(lambda: pods.works(0))
        pods.wait_for(lambda: pods.adopt(0) is None)
        load.after(50)
        pods.wait_for(lambda: num_running(pods, "instance-0"))
    assert load.failures == []


def test_ingress_that_is_told_to_end_fails_no_request(pods: Pods) -> None:
    with Load(pods, num_tokens=200) as load:
        load.after(30)
        ingress = pods.pods["ingress-0"]
        assert ingress.end() == 0
        load.after(50)
    assert load.failures == []


def test_head_ends_with_all_its_processes(pods: Pods) -> None:
    head = pods.pods["head"]
    children = psutil.Process(head.process.pid).children(recursive=True)
    began = time.monotonic()
    assert head.end() == 0
    assert time.monotonic() - began < 15
    assert psutil.wait_procs(children, timeout=5)[1] == []
