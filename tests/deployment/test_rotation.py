"""The secret of a deployment is changed while it serves, as pods see it: each at its own time."""

import time
from collections.abc import Iterator

import httpx
import pytest
from support.deployment import manifest
from support.pods import CONTROL_PORT, HEAD_PORT, PRIVATE_PORT, SECRET, Pods, running
from support.pods_load import Load

from macroserve.api.access_token import Audience, issue
from macroserve.api.keys import KeyRing, Purpose

pytestmark = pytest.mark.integration

NEW = "the new secret"


@pytest.fixture
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    document = manifest(scheduling={"strategy": "vllm"})
    with running(tmp_path_factory.mktemp("pods"), document) as deployment:
        yield deployment


def test_secret_that_changes_pod_by_pod_fails_no_request_and_then_holds_alone(
    pods: Pods,
) -> None:
    with Load(pods) as load:
        load.after(30)
        for secrets in (f"{NEW}\n{SECRET}\n", f"{NEW}\n"):
            (pods.folder / "tokens" / "secret").write_text(secrets)
            names = list(pods.pods)
            for name in names[::2]:
                change(pods, name, secrets, load)
            # One that starts meanwhile has the present keys alone, the others have yet to get them.
            pods.pods["head"].kill()
            number = 11 if pods.pods["head"].address == pods.at(10) else 10
            head = pods.start_head(number)
            pods.wait_for(lambda pod=head: pods.is_ok(pod, "/ready", HEAD_PORT))
            pods.wait_for(lambda: len(pods.instances()) == 3)
            for name in names[1::2]:
                change(pods, name, secrets, load)
        load.after(60)
    assert load.failures == []
    assert unreachable(pods) == 0
    assert [opens(pods, secret) for secret in (SECRET, NEW)] == [False, True]


def test_secret_that_is_replaced_at_once_fails_no_request(pods: Pods) -> None:
    with Load(pods) as load:
        load.after(30)
        for name in pods.pods:
            (pods.tokens_of(name) / "secret").write_text(NEW)
            load.after(10)
        load.after(60)
    assert load.failures == []
    assert [opens(pods, secret) for secret in (SECRET, NEW)] == [False, True]


def change(pods: Pods, name: str, secrets: str, load: Load) -> None:
    (pods.tokens_of(name) / "secret").write_text(secrets)
    load.after(30)


def opens(pods: Pods, secret: str) -> bool:
    """Tell whether an instance accepts calls with this secret."""
    audience = Audience(Purpose.CONTROL, "instance-0")
    token = issue(KeyRing.derived([secret], Purpose), audience, time.time(), "a nonce")
    url = f"http://{pods.pods['instance-0'].address}:{CONTROL_PORT}/macroserve/identity"
    status = httpx.get(url, headers={"Authorization": f"Bearer {token}"}).status_code
    assert status in (200, 401)
    return status == 200


def unreachable(pods: Pods) -> float:
    """Attempts that an instance did not take, as all ingresses count them."""
    address = pods.pods["ingress-0"].address
    page = httpx.get(f"http://{address}:{PRIVATE_PORT}/metrics").text
    samples = [
        line
        for line in page.splitlines()
        if line.startswith("macroserve_reroutes_total{") and 'reason="unreachable"' in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)
