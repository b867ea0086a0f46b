"""A deployment of emulated instances on Ray: live change and failures, with streams running."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from support.deployment import Up, free_port, manifest, running
from world.traffic import Traffic

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up"), manifest()) as deployment:
        yield deployment


def load_of(up: Up) -> Traffic:
    return Traffic(up.endpoint, rate=25)


def kill(up: Up, title: str) -> None:
    os.kill(up.processes(title)[0].pid, signal.SIGKILL)


def test_mitosis_under_load_fails_no_request(up: Up) -> None:
    with load_of(up) as load:
        load.after(50)
        assert up.command("scale", "5").returncode == 0
        up.wait_for(lambda: sorted(map(len, up.cells().values())) == [2, 3])
        load.after(150)
        assert up.command("scale", "3").returncode == 0
        up.wait_for(lambda: [len(c) for c in up.cells().values()] == [3])
        load.after(300)
    assert load.failures == []
    assert load.complete >= 500
    assert "Split cell-0" in up.log and "Merge" in up.log


def test_priority_ratio_changes_under_load(up: Up) -> None:
    def pools() -> list[str]:
        return sorted(i["pool"] for i in up.instances().values())

    assert pools() == ["hp", "lp", "lp"]
    with load_of(up) as load:
        load.after(20)
        up.write(manifest(priority={"highPriorityRatio": 0.66}))
        up.wait_for(lambda: pools() == ["hp", "hp", "lp"])
        load.after(50)
        up.write(manifest())
        up.wait_for(lambda: pools() == ["hp", "lp", "lp"])
        load.after(50)
    assert load.failures == []


def test_killed_cell_scheduler_comes_back_and_no_request_fails(up: Up) -> None:
    with load_of(up) as load:
        load.after(30)
        kill(up, "CellDeployment")
        load.after(200)
        up.wait_for(lambda: up.cells() and len(up.instances()) == 3)
        load.after(50)
    assert load.failures == []


def test_killed_instance_is_replaced_and_no_request_fails(up: Up) -> None:
    before = {i["address"] for i in up.instances().values()}
    with load_of(up) as load:
        load.after(30)
        kill(up, "local.process instance-")
        up.wait_for_line(r"instance-\d ended: its process was killed or crashed\.")
        up.wait_for(lambda: len({i["address"] for i in up.instances().values()} - before) == 1)
        load.after(100)
        up.wait_for(lambda: len(up.instances()) == 3)
    assert load.failures == []


def test_instance_whose_engine_was_killed_is_gone_with_its_cause(up: Up) -> None:
    before = {i["address"] for i in up.instances().values()}
    up.processes("local.process instance-")[0].children()[0].kill()
    up.wait_for_line(r"instance-\d ended: (?!its process)(?!it does not answer)\w+")
    up.wait_for(lambda: {i["address"] for i in up.instances().values()} - before)
    up.wait_for(lambda: len(up.instances()) == 3)


def test_killed_ingress_replica_breaks_only_its_own_connections(up: Up) -> None:
    with ThreadPoolExecutor(16) as pool:
        body = {"model": "tiny-llama", "prompt": [5] * 30, "max_tokens": 400, "ignore_eos": True}

        def ask(_: int) -> bool:
            try:
                url = up.endpoint + "/v1/completions"
                response = httpx.post(url, json=body, timeout=60)
            except httpx.TransportError:
                return False
            return response.json()["usage"]["completion_tokens"] == 400

        answers = [pool.submit(ask, i) for i in range(16)]
        time.sleep(1)
        kill(up, "local.process ingress-")
        outcomes = [answer.result() for answer in answers]
    # The kernel spreads connections over two replicas: each of the 16 has one of the two.
    assert True in outcomes
    assert httpx.get(up.endpoint + "/health", timeout=10).status_code == 200
    up.wait_for(lambda: len(up.processes("local.process ingress-")) == 2)
    with load_of(up) as load:
        load.after(50)
    assert load.failures == []


def listeners(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on a port."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {f[9] for f in lines if f[3] == "0A" and int(f[1].split(":")[1], 16) == port}


def sockets(process: psutil.Process) -> set[str]:
    links = (str(fd.readlink()) for fd in Path(f"/proc/{process.pid}/fd").iterdir())
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def test_hung_ingress_replica_leaves_the_port_and_is_replaced(up: Up) -> None:
    # One may still be starting in place of another that was killed.
    up.wait_for(lambda: len(listeners(up.port)) == 2)
    hung = up.processes("local.process ingress-")[0]
    port = listeners(up.port) & sockets(hung)
    assert port
    hung.send_signal(signal.SIGSTOP)
    # 15 s, and some for a busy machine, whose processes end long before their sockets.
    up.wait_for(lambda: not port & listeners(up.port), timeout_s=30)
    for _ in range(20):
        assert httpx.get(up.endpoint + "/health", timeout=5).status_code == 200
    up.wait_for(lambda: len(up.processes("local.process ingress-")) == 2)
    with load_of(up) as load:
        load.after(50)
    assert load.failures == []


def test_changed_manifest_that_cannot_be_is_refused_and_nothing_stops(up: Up) -> None:
    up.write(manifest(engine={"type": "vLLM"}))
    up.wait_for_line(r"not applied.*spec.engine.type cannot change")
    up.write(manifest(instances="many"))
    up.wait_for_line(r"not applied.*spec.instances")
    up.write(manifest())
    assert up.command("scale", "0").returncode == 2
    assert len(up.instances()) == 3


def test_status_shows_cells_and_instances(up: Up) -> None:
    text = up.command("status").stdout
    assert "3 instances in 1 cells" in text
    for name in (*up.instances(), *up.cells()):
        assert name in text


def test_admin_api_needs_its_token(up: Up) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        response = httpx.get(up.state.private + "/admin/v1/report", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "AuthenticationError"


def test_metrics_tell_of_everything_once(up: Up) -> None:
    heads = [line for line in metrics_page(up).splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    sums = up.metrics()
    assert sums["macroserve_cell_instances"] == 3
    assert sums["macroserve_requests_total"] > 50
    # Whatever an ingress is just about to end, as its own first token.
    up.wait_for(lambda: up.metrics()["macroserve_requests_in_flight"] == 0)
    # Both replicas are on the page, whichever was asked.
    up.wait_for(lambda: len(set(re.findall('ingress="([^"]+)"', metrics_page(up)))) == 2)


def metrics_page(up: Up) -> str:
    return httpx.get(up.state.private + "/metrics", timeout=10).text


def test_secrets_are_not_in_the_log(up: Up) -> None:
    state = up.state
    assert state.admin_token not in up.log and state.control_token not in up.log
    mode = (up.folder / "state" / "macroserve" / "test.json").stat().st_mode
    assert mode & 0o077 == 0


def test_second_deployment_on_the_same_port_is_refused(up: Up) -> None:
    other = up.folder / "other.yaml"
    other.write_text(yaml.safe_dump({**manifest(), "metadata": {"name": "other"}}))
    result = up.command("up", "-f", str(other), "--port", str(up.port))
    assert result.returncode == 1
    assert "cannot be used" in result.stderr


def test_second_deployment_of_the_same_name_is_refused(up: Up) -> None:
    before = up.state
    result = up.command("up", "-f", str(up.manifest_path), "--port", str(free_port()))
    assert result.returncode == 1
    assert "is already running" in result.stderr
    assert up.state == before
    assert up.command("status").returncode == 0
