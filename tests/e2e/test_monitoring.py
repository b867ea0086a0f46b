"""Real Prometheus, real Alertmanager, our rules, our endpoint: from missed targets to an alert."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from cluster import ClusterError, binaries, ports
from support.slo_classes import default_class
from support.token_requests import token_request
from world.monitoring import Monitoring, Target, pod_targets

from macroserve.core.request import Slo
from macroserve.operator.alert_server import AlertServer
from macroserve.operator.k8s.names import Key
from macroserve.operator.plan.firing_alerts import FiringAlerts
from macroserve.serving.ingress.metrics import IngressMetrics

RULES = sorted((Path(__file__).parents[2] / "helm" / "macroserve" / "rules").glob("*.yaml"))
LLAMA = Key("team", "llama")
LOW = "MacroserveSLOAttainmentLow"
TOKEN = "the token"
DEFAULT = default_class(Slo(ttft_s=1.0, tpot_s=0.1))


class Ingress:
    """An ingress's metrics, and requests that are made up."""

    def __init__(self):
        self.metrics = IngressMetrics(*LLAMA, [DEFAULT])
        self.attains = True

    @asynccontextmanager
    async def serving(self, port):
        app = web.Application()
        app.router.add_get("/macroserve/metrics", lambda _: web.Response(text=self.metrics.page()))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        requests = asyncio.create_task(self._serve())
        yield
        requests.cancel()
        await runner.cleanup()

    async def _serve(self):
        request = token_request("r", slo=DEFAULT.slo)
        while True:
            with self.metrics.request(0.0, request) as record:
                record.tokens(1, 0.5 if self.attains else 5.0)
            await asyncio.sleep(0.2)


class Operator:
    def __init__(self, folder):
        self.leads = True
        self.book = FiringAlerts()
        (folder / "token").write_text(TOKEN)
        self._server = AlertServer(
            folder / "token", lambda: self.leads, lambda key: key == LLAMA, self.book.note
        )

    @asynccontextmanager
    async def serving(self, port):
        await self._server.start(port, "127.0.0.1")
        yield
        await self._server.stop()

    async def until(self, condition, within_s):
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - of other processes' doings
                await asyncio.sleep(0.1)


@pytest.fixture
def has_binaries():
    try:
        binaries.find()
    except ClusterError as error:
        pytest.skip(str(error))


@pytest.mark.integration
@pytest.mark.usefixtures("has_binaries")
async def test_missed_targets_reach_the_operator_and_end_again(tmp_path):
    ingress, operator = Ingress(), Operator(tmp_path)
    metrics_port, alerts_port = ports.free("127.0.0.1", 2)
    target = Target(f"127.0.0.1:{metrics_port}", "/macroserve/metrics")
    url = f"http://127.0.0.1:{alerts_port}/alerts"
    async with ingress.serving(metrics_port), operator.serving(alerts_port):
        with Monitoring(lambda: [target], RULES, url, TOKEN) as monitoring:
            # The heartbeat arrives, and nothing else.
            await operator.until(lambda: not operator.book.is_silent, 30)
            assert not operator.book.firing(LLAMA)

            # Alertmanager tries again until a replica that leads takes it.
            operator.leads = False
            ingress.attains = False
            await operator.until(lambda: LOW in monitoring.firing("llama"), 60)
            assert not operator.book.firing(LLAMA)
            operator.leads = True
            await operator.until(lambda: operator.book.firing(LLAMA) == {LOW}, 10)

            # It ends about a minute after the targets are met again.
            ingress.attains = True
            await operator.until(lambda: not operator.book.firing(LLAMA), 100)
            attained = monitoring.query("macroserve:attainment:ratio_rate1m")
            assert next(iter(attained.values())) > 0.9

            # Without Prometheus Alertmanager soon takes everything as over, the heartbeat too.
            monitoring.prometheus.kill()
            await operator.until(lambda: operator.book.is_silent, 90)
            monitoring.start_prometheus()
            await operator.until(lambda: not operator.book.is_silent, 60)


@pytest.mark.integration
@pytest.mark.usefixtures("has_binaries")
async def test_wrong_token_keeps_alerts_out(tmp_path):
    operator = Operator(tmp_path)
    (alerts_port,) = ports.free("127.0.0.1", 1)
    url = f"http://127.0.0.1:{alerts_port}/alerts"
    async with operator.serving(alerts_port):
        with Monitoring(list, RULES, url, "another token") as monitoring:
            await operator.until(lambda: "MacroserveWatchdog" in monitoring.firing(), 30)
            await asyncio.sleep(3)
            assert operator.book.is_silent


def pod(name, phase="Running", ip="10.0.0.1", **labels):
    keys = {
        "component": "macroserve.io/component",
        "macroinstance": "macroserve.io/macroinstance",
        "instance": "macroserve.io/instance",
    }
    ours = {keys[key]: value for key, value in labels.items()}
    if ours:
        ours["app.kubernetes.io/managed-by"] = "macroserve-operator"
    return {
        "metadata": {"name": name, "namespace": "team", "labels": ours},
        "status": {"phase": phase, "podIP": ip},
    }


class Cluster:
    def __init__(self, *pods):
        self.pods = pods

    def kubectl(self, *arguments):
        assert arguments == ("get", "pods", "--all-namespaces", "-o", "json")
        return json.dumps({"items": self.pods})


def test_scrape_targets_of_a_cluster_are_as_listed():
    operator = pod("op-0", ip="10.0.0.9")
    operator["metadata"]["labels"] = {"app.kubernetes.io/component": "operator"}
    cluster = Cluster(
        operator,
        pod("a", component="head", macroinstance="llama"),
        pod("b", component="ingress", macroinstance="llama", ip="10.0.0.2"),
        pod("c", component="instance", macroinstance="llama", instance="instance-0"),
        pod("d", component="ingress", macroinstance="llama", phase="Pending"),
        pod("e", component="ingress", macroinstance="llama", ip=None),
        pod("someone's own"),
    )
    found = pod_targets(cluster)()
    llama = {"namespace": "team", "macroinstance": "llama"}
    assert found == [
        Target("10.0.0.9:9090", "/metrics", {"namespace": "team", "pod": "op-0"}),
        Target("10.0.0.2:8001", "/macroserve/metrics", {**llama, "pod": "b"}),
        Target("10.0.0.1:8000", "/metrics", {**llama, "pod": "c", "instance": "instance-0"}),
    ]
