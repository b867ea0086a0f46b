"""Ray's own servers are lost: that is told, and everything is started again."""

import signal
from collections.abc import Iterator

import httpx
import pytest
from support.deployment import Up, manifest, running

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    document = manifest(instances=1, mitosis={"lowerBound": 1, "upperBound": 4})
    with running(tmp_path_factory.mktemp("up"), document) as deployment:
        yield deployment


@pytest.mark.parametrize(
    ("part", "number", "says"),
    [
        ("gcs_server", signal.SIGKILL, "control store has ended"),
        ("gcs_server", signal.SIGSTOP, "control store does not answer"),
        ("raylet/raylet", signal.SIGKILL, "node manager has ended"),
        ("macroserve.local.process deployment", signal.SIGKILL, "process that runs Ray was killed"),
    ],
)
def test_lost_part_of_ray_is_named_and_the_deployment_restarts(
    up: Up, part: str, number: signal.Signals, says: str
) -> None:
    assert up.command("scale", "2").returncode == 0
    up.wait_for(lambda: len(up.instances()) == 2)
    num_lines = len(up.lines)
    old = up.processes("")
    up.processes(part)[0].send_signal(number)
    up.wait_for_line(says, timeout_s=60, after=num_lines)
    up.wait_for_line(r"Ready\.", after=num_lines)
    assert not any(process.is_running() for process in old)
    up.wait_for(lambda: up.state and len(up.instances()) == 2)
    body = {"model": "tiny-llama", "prompt": [5] * 30, "max_tokens": 4}
    response = httpx.post(up.endpoint + "/v1/completions", json=body, timeout=60)
    assert response.status_code == 200
    assert "Traceback" not in up.log
