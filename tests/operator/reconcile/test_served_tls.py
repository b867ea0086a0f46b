"""The components of a MacroInstance use TLS with a separate Secret, which can be switched on and
off."""

import asyncio
import base64
from datetime import timedelta

import pytest
from support.fake_api_server import Raw
from support.fake_deployment import NAMESPACE, FakeDeployment, resource
from support.fake_reconciles import cells, condition, fewest_staying, settle, settled

from macroserve.api.tls import AUTHORITY, CERTIFICATE
from macroserve.operator.apply.certificates import AUTHORITY_KEY, certificates
from macroserve.operator.k8s import names
from macroserve.operator.k8s.kinds import CERTIFICATE as CERTIFICATES
from macroserve.operator.k8s.kinds import SECRET
from macroserve.operator.render.served_tls import PLAIN, ServedTls

TLS = ServedTls(enabled=True)
ISSUED = ServedTls(enabled=True, issuer_ref={"name": "team", "kind": "Issuer"})
NAME = f"llama.{NAMESPACE}.macroserve.internal"


def secret(fake: FakeDeployment) -> Raw | None:
    found = (s for s in fake.api.all(SECRET) if s["metadata"]["name"] == "llama-served-tls")
    return next(found, None)


def data(fake: FakeDeployment) -> dict[str, str]:
    found = secret(fake)
    assert found is not None
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def a_persons(fake: FakeDeployment) -> Raw:
    made = {"metadata": {"name": "llama-served-tls", "namespace": NAMESPACE}}
    pem = certificates({}, NAME, fake.now)
    return {**made, "stringData": {k: v for k, v in pem.items() if k != AUTHORITY_KEY}}


def is_ready(fake: FakeDeployment) -> bool:
    return condition(fake, "Ready")["status"] == "True"


def test_macroinstance_gets_a_certificate_of_its_own_and_serves() -> None:
    fake, _ = settled(resource(), TLS)
    found = secret(fake)
    assert found is not None and found["type"] == "kubernetes.io/tls"
    assert found["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"
    assert certificates(made := data(fake), NAME, fake.now) is made
    assert is_ready(fake) and all(engine.tls for engine in fake.engines.values())


def test_macroinstance_without_tls_has_no_certificate() -> None:
    fake, _ = settled(resource(), PLAIN)
    assert secret(fake) is None and is_ready(fake)
    assert not any(engine.tls for engine in fake.engines.values())


@pytest.mark.parametrize(("before", "after"), [(PLAIN, TLS), (TLS, PLAIN)])
def test_tls_switch_replaces_instances_a_few_at_a_time(before: ServedTls, after: ServedTls) -> None:
    fake, _ = settled(resource(), before)
    reconciler = fake.switch(after)
    assert fewest_staying(fake, reconciler) >= 2
    assert cells(fake) == {"cell-0": set(fake.pods())}
    assert len(fake.engines) == 3 and is_ready(fake)
    assert all(engine.tls is after.enabled for engine in fake.engines.values())


@pytest.mark.parametrize("desired", [3, 1])
@pytest.mark.parametrize(("before", "after"), [(PLAIN, TLS), (TLS, PLAIN)])
def test_last_instance_of_before_a_tls_switch_stays_while_an_ingress_of_before_has_requests(
    before: ServedTls, after: ServedTls, desired: int
) -> None:
    fake, _ = settled(resource(instances=desired), before)
    fake.ingress_stays = True
    reconciler = fake.switch(after)
    asyncio.run(settle(fake, reconciler))
    assert [engine.tls for engine in fake.engines.values()].count(before.enabled) == 1
    assert not any("deletionTimestamp" in pod["metadata"] for pod in fake.pods().values())
    message = condition(fake, "Progressing")["message"]
    assert message.startswith("Instances of an earlier revision: instance-")
    assert message.endswith("Ingresses of an earlier revision finish their requests.")
    fake.ingress_stays = False
    asyncio.run(settle(fake, reconciler))
    assert len(fake.engines) == desired and is_ready(fake)
    assert all(engine.tls is after.enabled for engine in fake.engines.values())


def test_certificate_is_renewed_in_time_and_replaces_no_pod() -> None:
    fake, reconciler = settled(resource(), TLS)
    before, pods = data(fake), set(fake.pods())
    fake.now += timedelta(days=61)
    asyncio.run(settle(fake, reconciler))
    after = data(fake)
    assert after[CERTIFICATE] != before[CERTIFICATE] and after[AUTHORITY] == before[AUTHORITY]
    assert set(fake.pods()) == pods and is_ready(fake)


def test_restarted_operator_keeps_the_certificate() -> None:
    fake, _ = settled(resource(), TLS)
    before = data(fake)
    asyncio.run(settle(fake, fake.reconciler()))
    assert data(fake) == before


def test_lost_certificate_is_restored() -> None:
    fake, reconciler = settled(resource(), TLS)
    before, found = data(fake), secret(fake)
    assert found is not None
    fake.api.remove(SECRET, found)
    asyncio.run(settle(fake, reconciler))
    assert data(fake) == before


def test_certificate_of_a_user_is_unchanged() -> None:
    fake = FakeDeployment(served_tls=TLS)
    fake.api.put(SECRET, a_persons(fake))
    before = data(fake)
    fake.apply(resource())
    reconciler = fake.reconciler()
    asyncio.run(settle(fake, reconciler))
    fake.now += timedelta(days=100)
    asyncio.run(settle(fake, reconciler))
    assert data(fake) == before and is_ready(fake)


@pytest.mark.parametrize("authority", [None, "", "nonsense"])
def test_unusable_certificate_is_reported_as_a_problem(authority: str | None) -> None:
    fake = FakeDeployment(served_tls=TLS)
    own = a_persons(fake)
    own["stringData"] |= {AUTHORITY: authority} if authority is not None else {}
    if authority is None:
        del own["stringData"][AUTHORITY]
    fake.api.put(SECRET, own)
    fake.apply(resource())
    asyncio.run(fake.reconcile(fake.reconciler()))
    degraded = condition(fake, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "CertificateUnusable")
    assert "The Secret llama-served-tls must have under the key ca.crt" in degraded["message"]
    assert not fake.pods() and not fake.requests


def test_certificate_with_an_issuer_is_made_by_cert_manager() -> None:
    fake = FakeDeployment(served_tls=ISSUED)
    fake.apply(resource())
    reconciler = fake.reconciler()
    for _ in range(3):
        asyncio.run(fake.reconcile(reconciler))
        fake.now += timedelta(seconds=60)
    (wanted,) = fake.api.all(CERTIFICATES)
    assert wanted["spec"]["secretName"] == wanted["metadata"]["name"] == "llama-served-tls"
    assert wanted["spec"]["dnsNames"] == [NAME]
    assert wanted["spec"]["issuerRef"] == {"name": "team", "kind": "Issuer"}
    assert wanted["metadata"]["labels"][names.MACROINSTANCE] == "llama"
    degraded = condition(fake, "Degraded")
    assert degraded["reason"] == "CertificateUnusable"
    assert "cert-manager has not created the Secret llama-served-tls yet" in degraded["message"]
    assert secret(fake) is None and not fake.pods()
    fake.api.put(SECRET, a_persons(fake))
    before = data(fake)
    asyncio.run(settle(fake, reconciler))
    assert is_ready(fake) and data(fake) == before
