"""Prometheus and Alertmanager for a cluster, configured like a cluster's own by the chart.

Debian's Prometheus has no discovery by Kubernetes, so a thread writes the targets from kubectl to a
file that Prometheus watches.
"""

import base64
import contextlib
import json
import subprocess
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cluster import Cluster, binaries, ports
from cluster.processes import Process, wait_until

_ADDRESS = "127.0.0.1"
_SCRAPE_INTERVAL = "5s"
_RESEND = "5s"
_REFRESH_S = 2.0
_READY_S = 30.0


@dataclass(frozen=True)
class Target:
    """An address to scrape, like ``10.0.0.1:8001``."""

    address: str
    path: str = "/metrics"
    labels: dict[str, str] = field(default_factory=dict)


Targets = Callable[[], Sequence[Target]]


class Monitoring:
    """Prometheus and Alertmanager during a ``with`` statement.

    `targets` is called every two seconds. `alerts_url` is the operator's address for alerts, and
    `token` its token.
    """

    def __init__(
        self, targets: Targets, rules: Sequence[Path], alerts_url: str, token: str
    ) -> None:
        self._targets = targets
        self._rules = rules
        self._alerts_url = alerts_url
        self._token = token
        self._written = ""
        self._leave = threading.Event()
        self.prometheus: Process
        self.alertmanager: Process

    def __enter__(self) -> "Monitoring":
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="macroserve-monitoring-")
            self._folder = Path(stack.enter_context(temporary))
            self._ports = ports.free(_ADDRESS, 2)
            self._refresh()
            self.start_alertmanager()
            stack.callback(lambda: self.alertmanager.stop())
            self.start_prometheus()
            stack.callback(lambda: self.prometheus.stop())
            thread = threading.Thread(target=self._keep_refreshing)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._leave.set)
            self._close = stack.pop_all().close
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def start_alertmanager(self) -> None:
        """Start Alertmanager, also after a kill; before Prometheus, so that no alert is lost."""
        (self._folder / "token").write_text(self._token)
        config = self._write("alertmanager.yaml", self._alertmanager_config())
        self.alertmanager = self._start(
            "alertmanager",
            self._ports[0],
            f"--config.file={config}",
            f"--storage.path={self._folder / 'alertmanager'}",
            # Without a cluster of Alertmanagers.
            "--cluster.listen-address=",
        )

    def start_prometheus(self) -> None:
        """Start Prometheus, also after a kill; its data is kept."""
        config = self._write("prometheus.yaml", self._prometheus_config())
        self.prometheus = self._start(
            "prometheus",
            self._ports[1],
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'prometheus'}",
            # By default, alerts from before it finds Alertmanager are resent after a minute, and
            # Alertmanager resolves alerts that are not resent for four times this delay.
            f"--rules.alert.resend-delay={_RESEND}",
        )

    @property
    def prometheus_url(self) -> str:
        return f"http://{_ADDRESS}:{self._ports[1]}"

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the current value of each series by its sorted labels."""
        asked = urllib.parse.urlencode({"query": expression})
        answer = self._get(f"/api/v1/query?{asked}")
        return {
            tuple(sorted(series["metric"].items())): float(series["value"][1])
            for series in answer["data"]["result"]
        }

    def firing(self, macroinstance: str | None = None) -> set[str]:
        """Return the names of the firing alerts, of one MacroInstance or all."""
        return {
            labels["alertname"]
            for labels in self._firing()
            if macroinstance in (None, labels.get("macroinstance"))
        }

    def classes(self, alert: str, macroinstance: str) -> set[str]:
        """Return the SLO classes for which an alert of a MacroInstance fires."""
        return {
            labels.get("slo_class", "")
            for labels in self._firing()
            if (labels["alertname"], labels.get("macroinstance")) == (alert, macroinstance)
        }

    def _firing(self) -> list[dict[str, str]]:
        """Return the labels of each firing alert."""
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def _start(self, name: str, port: int, *options: str) -> Process:
        folder = binaries.find()
        command = [folder / name, *options, f"--web.listen-address={_ADDRESS}:{port}"]
        # Alertmanager reads its templates from the working directory.
        process = Process(name, command, self._folder / f"{name}.log", directory=folder)
        ready = f"http://{_ADDRESS}:{port}/-/ready"
        try:
            wait_until(lambda: _answers(ready), f"{name} is ready", _READY_S, [process])
        except BaseException:
            process.kill()
            raise
        return process

    def _get(self, path: str) -> Any:
        """Return Prometheus' response."""
        with urllib.request.urlopen(self.prometheus_url + path, timeout=10) as answer:
            return json.load(answer)

    def _write(self, name: str, config: dict[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(yaml.safe_dump(config))
        return path

    def _alertmanager_config(self) -> dict[str, Any]:
        """Return Alertmanager's configuration, equal to the chart's
        ``templates/alertmanagerconfig.yaml``."""
        webhook = {
            "url": self._alerts_url,
            "send_resolved": True,
            "http_config": {
                "authorization": {"credentials_file": str(self._folder / "token")},
            },
        }
        scaling = {
            "receiver": "macroserve-operator",
            "matchers": ['macroserve="scaling"'],
            "group_by": ["namespace", "macroinstance", "alertname"],
            "group_wait": "0s",
            "group_interval": "10s",
            "repeat_interval": "1m",
        }
        return {
            "route": {"receiver": "nobody", "routes": [scaling]},
            "receivers": [
                {"name": "nobody"},
                {"name": "macroserve-operator", "webhook_configs": [webhook]},
            ],
        }

    def _prometheus_config(self) -> dict[str, Any]:
        alertmanager = {"static_configs": [{"targets": [f"{_ADDRESS}:{self._ports[0]}"]}]}
        followed = {"files": [str(self._targets_file)], "refresh_interval": "1s"}
        return {
            "global": {
                "scrape_interval": _SCRAPE_INTERVAL,
                "evaluation_interval": _SCRAPE_INTERVAL,
            },
            "rule_files": [str(path) for path in self._rules],
            "alerting": {"alertmanagers": [alertmanager]},
            "scrape_configs": [
                {"job_name": "macroserve", "honor_labels": True, "file_sd_configs": [followed]}
            ],
        }

    @property
    def _targets_file(self) -> Path:
        return self._folder / "targets.json"

    def _keep_refreshing(self) -> None:
        while not self._leave.wait(_REFRESH_S):
            # Without an answer of the API server, the targets stay.
            with contextlib.suppress(subprocess.CalledProcessError):
                self._refresh()

    def _refresh(self) -> None:
        groups = [
            {
                "targets": [target.address],
                "labels": {**target.labels, "__metrics_path__": target.path},
            }
            for target in self._targets()
        ]
        text = json.dumps(groups)
        if text != self._written:
            fresh = self._targets_file.with_suffix(".new")
            fresh.write_text(text)
            fresh.rename(self._targets_file)
            self._written = text


def monitor(cluster: Cluster, rules: Sequence[Path], namespace: str) -> Monitoring:
    """Return the monitoring of a cluster's pods and of the operator in ``namespace``."""
    service = json.loads(
        cluster.kubectl("-n", namespace, "get", "service", "macroserve-operator", "-o", "json")
    )
    secret = json.loads(
        cluster.kubectl(
            "-n", namespace, "get", "secret", "macroserve-operator-alerts", "-o", "json"
        )
    )
    alerts_url = f"http://{service['spec']['clusterIP']}:9095/alerts"
    token = base64.b64decode(secret["data"]["token"]).decode()
    return Monitoring(pod_targets(cluster), rules, alerts_url, token)


def pod_targets(cluster: Cluster) -> Targets:
    """Return the targets of the chart's monitors: operators, ingresses and instances."""

    def find() -> list[Target]:
        pods = json.loads(cluster.kubectl("get", "pods", "--all-namespaces", "-o", "json"))
        return [target for pod in pods["items"] for target in _targets_of(pod)]

    return find


def _targets_of(pod: dict[str, Any]) -> Iterator[Target]:
    metadata, address = pod["metadata"], pod["status"].get("podIP")
    labels = metadata.get("labels", {})
    if not address or pod["status"]["phase"] != "Running":
        return
    own = {"namespace": metadata["namespace"], "pod": metadata["name"]}
    if labels.get("app.kubernetes.io/component") == "operator":
        yield Target(f"{address}:9090", labels=own)
    if labels.get("app.kubernetes.io/managed-by") != "macroserve-operator":
        return
    own["macroinstance"] = labels["macroserve.io/macroinstance"]
    match labels["macroserve.io/component"]:
        case "ingress":
            yield Target(f"{address}:8001", "/macroserve/metrics", own)
        case "instance":
            instance = {"instance": labels["macroserve.io/instance"]}
            yield Target(f"{address}:8000", labels={**own, **instance})


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False
