"""Alertmanager reaches the endpoint over HTTP."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client import REGISTRY

from macroserve.operator.alert_server import MAX_BODY_BYTES, AlertServer, decode
from macroserve.operator.k8s.names import Key
from macroserve.operator.plan.firing_alerts import Alert

TOKEN = "correct horse"


def labels(**others):
    own = {"alertname": "Low", "namespace": "ns", "macroinstance": "llama"}
    return {name: value for name, value in {**own, **others}.items() if value is not None}


def webhook(*alerts, version="4"):
    """Return a call as Alertmanager 0.25 sends it."""
    return {
        "receiver": "operator",
        "status": "firing",
        "alerts": list(alerts),
        "groupLabels": {"alertname": "Low"},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "version": version,
        "groupKey": '{}:{alertname="Low"}',
        "truncatedAlerts": 0,
    }


def alert(status="firing", **others):
    return {
        "status": status,
        "labels": labels(**others),
        "annotations": {"summary": "..."},
        "startsAt": "2024-01-01T00:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus",
        "fingerprint": "f00d",
    }


class World:
    def __init__(self, folder):
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.leads = True
        self.known = {Key("ns", "llama")}
        self.noted = []

    @asynccontextmanager
    async def server(self):
        server = AlertServer(
            self.token_file, lambda: self.leads, self.known.__contains__, self.noted.append
        )
        self.port = await server.start(0, "127.0.0.1")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self.port}") as http:
            yield http
        await server.stop()

    async def post(self, body, headers=None, path="/alerts"):
        if headers is None:
            headers = {"Authorization": f"Bearer {TOKEN}"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (
            self.server() as http,
            http.post(path, data=data, headers=headers) as response,
        ):
            return response.status, await response.text(), response.headers


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def count(name, **labels):
    return REGISTRY.get_sample_value(f"macroserve_operator_{name}_total", labels) or 0.0


async def test_firing_and_resolved_alerts_are_noted(world):
    body = webhook(alert(), alert("resolved", alertname="Late"), alert(macroinstance=None))
    status, _, _ = await world.post(body)
    assert status == 200
    llama = Key("ns", "llama")
    assert world.noted == [
        Alert("Low", llama, True, "f00d"),
        Alert("Late", llama, False, "f00d"),
        Alert("Low", None, True, "f00d"),
    ]


async def test_alert_of_an_unknown_macroinstance_is_counted_and_harms_no_other(world):
    before = count("alerts", outcome="unknown"), count("alerts", outcome="noted")
    status, _, _ = await world.post(webhook(alert(macroinstance="gone"), alert()))
    assert status == 200
    assert [noted.about for noted in world.noted] == [Key("ns", "llama")]
    assert (count("alerts", outcome="unknown"), count("alerts", outcome="noted")) == (
        before[0] + 1,
        before[1] + 1,
    )


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="none"),
        pytest.param({"Authorization": TOKEN}, id="no scheme"),
        pytest.param({"Authorization": f"Basic {TOKEN}"}, id="another scheme"),
        pytest.param({"Authorization": "Bearer"}, id="no token"),
        pytest.param({"Authorization": "Bearer wrong"}, id="wrong"),
        pytest.param({"Authorization": f"Bearer {TOKEN}x"}, id="longer"),
        pytest.param({"Authorization": f"Bearer {TOKEN[:-1]}"}, id="shorter"),
    ],
)
async def test_alert_without_the_token_is_refused(world, headers):
    before = count("alert_refusals", reason="unauthorized")
    status, text, answered = await world.post(webhook(alert()), headers)
    assert (status, world.noted) == (401, [])
    assert answered["WWW-Authenticate"] == "Bearer"
    assert TOKEN not in text
    assert count("alert_refusals", reason="unauthorized") == before + 1


async def test_alert_token_that_is_no_text_is_refused(world):
    async with world.server():
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"POST /alerts HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
        writer.close()


async def test_alert_token_that_changed_holds_at_once(world):
    world.token_file.write_text("another")
    assert (await world.post(webhook(alert())))[0] == 401
    assert (await world.post(webhook(alert()), {"Authorization": "bearer another"}))[0] == 200


async def test_alert_while_no_token_is_configured_is_refused(world):
    world.token_file.write_text("\n")
    assert (await world.post(webhook(alert()), {"Authorization": "Bearer "}))[0] == 401
    world.token_file.unlink()
    assert (await world.post(webhook(alert()), {"Authorization": "Bearer "}))[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        json.dumps({"version": "4"}).encode(),
        json.dumps(webhook(version="3")).encode(),
        json.dumps(webhook({"status": "firing"})).encode(),
        json.dumps(webhook(alert("burning"))).encode(),
        json.dumps(webhook({**alert(), "labels": {"alertname": 5}})).encode(),
        json.dumps(webhook({**alert(), "labels": ["a"]})).encode(),
        b'{"version": "4", "alerts": ' + b"[" * 100_000,
        b'{"version": "4", "alerts": [], "more": ' + b"[" * 100_000,
    ],
)
async def test_body_that_is_no_webhook_call_gets_a_sentence(world, body):
    before = count("alert_refusals", reason="malformed")
    status, text, _ = await world.post(body)
    assert (status, world.noted) == (400, [])
    assert json.loads(text)["message"].startswith("This is not Alertmanager's webhook JSON")
    assert count("alert_refusals", reason="malformed") == before + 1


async def test_alert_body_that_is_too_large_is_not_read(world):
    status, _, _ = await world.post(b" " * (MAX_BODY_BYTES + 1))
    assert (status, world.noted) == (413, [])


async def test_alert_server_serves_no_other_path_or_method(world):
    assert (await world.post(b"", path="/"))[0] == 404
    async with world.server() as http, http.get("/alerts") as response:
        assert response.status == 405


async def test_replica_that_does_not_lead_refuses_alerts_as_unavailable(world):
    world.leads = False
    status, _, headers = await world.post(webhook(alert()))
    assert (status, world.noted) == (503, [])
    assert headers["Connection"] == "close"
    assert (await world.post(webhook(alert()), {}))[0] == 401, "not even that without a token"


def test_alert_with_missing_or_additional_labels_is_decoded():
    body = json.dumps(webhook({"status": "firing", "labels": {}}, alert(cell="cell-0")))
    assert decode(body.encode()) == (
        Alert("", None, True),
        Alert("Low", Key("ns", "llama"), True, "f00d"),
    )
