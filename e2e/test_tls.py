"""TLS between the pods of a MacroInstance, switched on and off on nodes that probe them."""

from collections.abc import Iterator

import httpx
import pytest
from cluster import Capability
from world.kube import Kube
from world.pods import is_ready
from world.release import Release
from world.served import Served, emulated
from world.traffic import Traffic
from world.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs(Capability.POD_NETWORK)]

SWITCH_S = 300
INSTANCE_PORTS = (8000, 8001)


@pytest.fixture
def switched(release: Release) -> Iterator[Release]:
    yield release
    release.upgrade({})


def test_switching_tls_on_and_off_keeps_a_service_that_answers(
    switched: Release, kube: Kube
) -> None:
    served = Served(kube, emulated("private"))
    served.apply()
    served.wait_for_instances(3)
    with Traffic(served.endpoint, rate=1.0) as traffic:
        traffic.after(5)
        for enabled in (True, False):
            switched.upgrade({"servedTls": {"enabled": enabled}})
            eventually(
                lambda e=enabled: all_speak(served, tls=e), SWITCH_S, describe=served.describe
            )
            served.wait_for_instances(3)
            traffic.after(5)
    assert not traffic.failures


def all_speak(served: Served, *, tls: bool) -> bool:
    """Return whether all instances are Ready and answer only with TLS, or only without it."""
    pods = served.pods()
    return len(pods) == 3 and all(
        is_ready(pod) and speaks(pod["status"]["podIP"], port, tls)
        for pod in pods
        for port in INSTANCE_PORTS
    )


def speaks(address: str, port: int, tls: bool) -> bool:
    scheme, other = ("https", "http") if tls else ("http", "https")
    return answers(f"{scheme}://{address}:{port}") and not answers(f"{other}://{address}:{port}")


def answers(url: str) -> bool:
    # Without verification, like kubelets: the certificate's name is not that of the address.
    try:
        return bool(httpx.get(url + "/metrics", timeout=5, verify=False).status_code)
    except httpx.TransportError:
        return False
