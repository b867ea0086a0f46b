"""TLS between the parts of a MacroInstance: its Secret, and how it is switched on and off."""

import asyncio
import base64
from datetime import timedelta

import pytest
from support.played_api import Raw
from support.played_deployment import NAMESPACE, PlayedDeployment, resource
from support.played_rounds import cells, condition, fewest_staying, settle, settled

from macroserve.api.tls import AUTHORITY, CERTIFICATE
from macroserve.operator.apply.certificates import AUTHORITY_KEY, certificates
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import CERTIFICATE as CERTIFICATES
from macroserve.operator.k8s.kinds import SECRET
from macroserve.operator.render.served_tls import PLAIN, ServedTls

TLS = ServedTls(enabled=True)
ISSUED = ServedTls(enabled=True, issuer_ref={"name": "team", "kind": "Issuer"})
NAME = f"llama.{NAMESPACE}.macroserve.internal"


def secret(played: PlayedDeployment) -> Raw | None:
    found = (s for s in played.api.all(SECRET) if s["metadata"]["name"] == "llama-served-tls")
    return next(found, None)


def data(played: PlayedDeployment) -> dict[str, str]:
    found = secret(played)
    assert found is not None
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def a_persons(played: PlayedDeployment) -> Raw:
    made = {"metadata": {"name": "llama-served-tls", "namespace": NAMESPACE}}
    pem = certificates({}, NAME, played.now)
    return {**made, "stringData": {k: v for k, v in pem.items() if k != AUTHORITY_KEY}}


def is_ready(played: PlayedDeployment) -> bool:
    return condition(played, "Ready")["status"] == "True"


def test_a_macroinstance_gets_a_certificate_of_its_own_and_serves() -> None:
    played, _ = settled(resource(), TLS)
    found = secret(played)
    assert found is not None and found["type"] == "kubernetes.io/tls"
    assert found["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"
    assert certificates(made := data(played), NAME, played.now) is made
    assert is_ready(played) and all(engine.tls for engine in played.engines.values())


def test_without_tls_there_is_no_certificate_and_nothing_asks_for_one() -> None:
    played, _ = settled(resource(), PLAIN)
    assert secret(played) is None and is_ready(played)
    assert not any(engine.tls for engine in played.engines.values())


@pytest.mark.parametrize(("before", "after"), [(PLAIN, TLS), (TLS, PLAIN)])
def test_a_switch_replaces_instances_and_most_of_them_stay_meanwhile(
    before: ServedTls, after: ServedTls
) -> None:
    played, _ = settled(resource(), before)
    reconciler = played.switch(after)
    assert fewest_staying(played, reconciler) >= 2
    assert cells(played) == {"cell-0": set(played.pods())}
    assert len(played.engines) == 3 and is_ready(played)
    assert all(engine.tls is after.enabled for engine in played.engines.values())


def test_a_certificate_is_renewed_in_time_and_replaces_no_pod() -> None:
    played, reconciler = settled(resource(), TLS)
    before, pods = data(played), set(played.pods())
    played.now += timedelta(days=61)
    asyncio.run(settle(played, reconciler))
    after = data(played)
    assert after[CERTIFICATE] != before[CERTIFICATE] and after[AUTHORITY] == before[AUTHORITY]
    assert set(played.pods()) == pods and is_ready(played)


def test_another_operator_goes_on_with_the_certificate_that_is_there() -> None:
    played, _ = settled(resource(), TLS)
    before = data(played)
    asyncio.run(settle(played, played.reconciler()))
    assert data(played) == before


def test_a_certificate_that_is_lost_is_put_back_for_pods_still_show_it() -> None:
    played, reconciler = settled(resource(), TLS)
    before, found = data(played), secret(played)
    assert found is not None
    played.api.remove(SECRET, found)
    asyncio.run(settle(played, reconciler))
    assert data(played) == before


def test_a_persons_own_certificate_is_left_as_it_is() -> None:
    played = PlayedDeployment(served_tls=TLS)
    played.api.put(SECRET, a_persons(played))
    before = data(played)
    played.apply(resource())
    reconciler = played.reconciler()
    asyncio.run(settle(played, reconciler))
    played.now += timedelta(days=100)
    asyncio.run(settle(played, reconciler))
    assert data(played) == before and is_ready(played)


@pytest.mark.parametrize("authority", [None, "", "nonsense"])
def test_a_certificate_that_cannot_be_used_is_told_of(authority: str | None) -> None:
    played = PlayedDeployment(served_tls=TLS)
    own = a_persons(played)
    own["stringData"] |= {AUTHORITY: authority} if authority is not None else {}
    if authority is None:
        del own["stringData"][AUTHORITY]
    played.api.put(SECRET, own)
    played.apply(resource())
    asyncio.run(played.round(played.reconciler()))
    degraded = condition(played, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "CertificateUnusable")
    assert "The Secret llama-served-tls must have under the key ca.crt" in degraded["message"]
    assert not played.pods() and not played.requests


def test_with_an_issuer_cert_manager_makes_the_secret() -> None:
    played = PlayedDeployment(served_tls=ISSUED)
    played.apply(resource())
    reconciler = played.reconciler()
    for _ in range(3):
        asyncio.run(played.round(reconciler))
        played.now += timedelta(seconds=60)
    (wanted,) = played.api.all(CERTIFICATES)
    assert wanted["spec"]["secretName"] == wanted["metadata"]["name"] == "llama-served-tls"
    assert wanted["spec"]["dnsNames"] == [NAME]
    assert wanted["spec"]["issuerRef"] == {"name": "team", "kind": "Issuer"}
    assert wanted["metadata"]["labels"][names.MACROINSTANCE] == "llama"
    degraded = condition(played, "Degraded")
    assert degraded["reason"] == "CertificateUnusable"
    assert "cert-manager has not made the Secret llama-served-tls yet" in degraded["message"]
    assert secret(played) is None and not played.pods()
    played.api.put(SECRET, a_persons(played))
    before = data(played)
    asyncio.run(settle(played, reconciler))
    assert is_ready(played) and data(played) == before
