"""A deployment as pods run it, with TLS between its parts."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from support.certificates import NAME, write
from support.deployment import MACROSERVE, manifest
from support.pods import CONTROL_PORT, HEAD_PORT, PORT, PRIVATE_PORT, Pods, running
from support.pods_load import Load

from macroserve.api.access_token import Audience
from macroserve.api.keys import Purpose
from macroserve.api.tls import AUTHORITY
from macroserve.operator.apply.certificates import certificates

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    document = manifest(scheduling={"strategy": "vllm"})
    folder = tmp_path_factory.mktemp("pods")
    with running(folder, document, ingresses=1, instances=2, tls=True) as deployment:
        yield deployment


def test_chat_is_streamed_from_parts_whose_addresses_are_all_https(pods: Pods) -> None:
    assert pods.chat("ingress-0", num_tokens=20) == 20
    assert all(found["address"].startswith("https://") for found in pods.instances().values())
    cells = pods.ask_head("GET", "/cells", token=pods.token(Audience(Purpose.CELLS)))["cells"]
    assert cells["cell-0"].startswith("https://")


@pytest.mark.parametrize(
    ("name", "port"), [("head", HEAD_PORT), ("instance-0", PORT), ("instance-0", CONTROL_PORT)]
)
def test_plain_http_caller_gets_no_answer_and_the_log_says_why(
    pods: Pods, name: str, port: int
) -> None:
    pod = pods.pods[name]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{pod.address}:{port}/health", timeout=10)
    pods.wait_for(lambda: "peer speaks plain HTTP" in pod.log, 10)


def test_metrics_of_ingresses_and_probes_need_no_certificate(pods: Pods) -> None:
    address = pods.pods["ingress-0"].address
    page = httpx.get(f"http://{address}:{PRIVATE_PORT}/metrics", timeout=10).text
    assert 'instance="instance-0"' in page and 'instance="instance-1"' in page


def test_certificate_is_renewed_while_streams_flow(pods: Pods) -> None:
    renewed = certificates(pods.certificates, NAME, datetime.now(UTC))
    assert renewed[AUTHORITY] == pods.certificates[AUTHORITY] and renewed != pods.certificates
    with Load(pods) as load:
        load.after(20)
        for name in pods.pods:
            write(pods.tls_of(name), renewed)
        load.after(40)
        # A new head has no connections yet, and opens some to every part.
        pods.pods["head"].kill()
        write(pods.folder / "tls", renewed)
        head = pods.start_head(number=11)
        pods.wait_for(lambda: pods.is_ok(head, "/ready", HEAD_PORT))
        pods.wait_for(lambda: len(pods.instances()) == 2)
        load.after(20)
    assert load.failures == []
    for pod in (pods.pods["instance-0"], pods.pods["instance-1"]):
        pods.wait_for(lambda p=pod: p.has_logged("credentials reloaded", credentials="certificate"))


def test_part_without_a_certificate_says_so_and_ends(pods: Pods, tmp_path: Path) -> None:
    files = ["-f", str(pods.folder / "manifest.json"), "--tokens", str(pods.folder / "tokens")]
    ended = subprocess.run(
        [*MACROSERVE, "run", "head", "--host", "127.0.0.1", *files, "--tls", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert f"{tmp_path}/tls.crt cannot be read: No such file or directory" in ended.stderr
