"""Metrics of an ingress, and one page with those of its peers, the cells and the instances.

Labels have few values (outcomes, reasons, names of the deployment) and none from clients.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from macroserve.api import messages
from macroserve.core.slo_class import SloClass
from macroserve.engine.tokens import TokenRequest
from macroserve.serving.ingress.served_request import ServedRequest

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60)
TPOT_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
SCRAPE_TIMEOUT_S = 2.0


class IngressMetrics:
    """The metrics of one ingress.

    classes: all SLO classes of the deployment.
    """

    def __init__(self, namespace: str, macroinstance: str, classes: Iterable[SloClass]) -> None:
        self.registry = CollectorRegistry()
        self.names = {"namespace": namespace, "macroinstance": macroinstance}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (*self.names, *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            labels = (*self.names, "slo_class")
            return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, self.names, registry=self.registry).labels(**self.names)

        self._requests = counter(
            "macroserve_requests",
            "Requests ended, by outcome (ok, failed, refused, cancelled) and SLO class",
            "outcome",
            "slo_class",
        )
        self._attained = counter(
            "macroserve_requests_attained", "Requests that met their targets", "slo_class"
        )
        self._refused = counter(
            "macroserve_requests_refused",
            "Requests refused before they were accepted",
            "reason",
            "slo_class",
        )
        self._rerouted = counter(
            "macroserve_reroutes", "Requests moved to another instance", "reason"
        )
        self._placed = counter("macroserve_route_decisions", "Routing decisions taken", "reason")
        self._poisoned = counter(
            "macroserve_requests_poisoned",
            "Requests given up after instances failed while running them",
        )
        self._tokens = counter("macroserve_generated_tokens", "Tokens sent to clients")
        self._prompt_tokens = counter("macroserve_prompt_tokens", "Prompt tokens accepted")
        self._ttft = histogram(
            "macroserve_ttft_seconds", "Time to first token at the ingress", LATENCY_BUCKETS_S
        )
        self._tpot = histogram(
            "macroserve_tpot_seconds", "Mean time per token after the first", TPOT_BUCKETS_S
        )
        self._in_flight = gauge("macroserve_requests_in_flight", "Accepted requests in progress")
        goal = Gauge(
            "macroserve_slo_attainment_target",
            "Fraction of requests that should meet their targets",
            (*self.names, "slo_class"),
            registry=self.registry,
        )
        for each in classes:
            goal.labels(**self.names, slo_class=each.name).set(each.attainment)

    def refused(self, reason: str, slo_class: str) -> None:
        self._refused.labels(**self.names, reason=reason, slo_class=slo_class).inc()

    def rerouted(self, reason: str) -> None:
        self._rerouted.labels(**self.names, reason=reason).inc()

    def poisoned(self) -> None:
        self._poisoned.labels(**self.names).inc()

    def placed(self, reason: str) -> None:
        self._placed.labels(**self.names, reason=reason).inc()

    @contextmanager
    def request(self, arrival_s: float, request: TokenRequest) -> Iterator[ServedRequest]:
        """Count a client's request, from its arrival to its end; probes are not counted."""
        record = ServedRequest(arrival_s, request.info)
        if request.info.probe:
            yield record
            return
        self._prompt_tokens.labels(**self.names).inc(request.num_prompt_tokens)
        self._in_flight.inc()
        try:
            yield record
        except BaseException as error:
            record.ended_by(error)
            raise
        finally:
            self._in_flight.dec()
            self._end(record)

    def _end(self, record: ServedRequest) -> None:
        labels = {**self.names, "slo_class": record.slo_class}
        self._requests.labels(**labels, outcome=record.outcome).inc()
        self._tokens.labels(**self.names).inc(record.num_tokens)
        if record.ttft_s is not None:
            self._ttft.labels(**labels).observe(record.ttft_s)
        if record.tpot_s is not None:
            self._tpot.labels(**labels).observe(record.tpot_s)
        if record.outcome == "ok" and record.attained:
            self._attained.labels(**labels).inc()

    def page(self) -> str:
        return generate_latest(self.registry).decode()


class _Counted(Collector):
    """A collector of given values. A new ``Counter`` for each page would report a new creation
    time each time."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def cell_page(summaries: Iterable[messages.CellSummary], names: dict[str, str]) -> str:
    """Return a page of the cells' metrics, from their last summaries."""
    registry = CollectorRegistry()
    labels = (*names, "cell")

    def gauge(name: str, text: str) -> Gauge:
        return Gauge(f"macroserve_cell_{name}", text, labels, registry=registry)

    def counter(name: str, text: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"macroserve_cell_{name}", text, labels=labels)

    gauges = {
        "instances": gauge("instances", "Instances in the cell"),
        "high_priority": gauge("high_priority_instances", "Of those, in the HP pool"),
        "waiting": gauge("requests_waiting", "Requests waiting for prefill"),
        "running": gauge("requests_running", "Requests that hold KV blocks"),
        "prefilling": gauge("requests_prefilling", "Of those, before their first token"),
        "decoding": gauge("requests_decoding", "Of those, after their first token"),
        "free_blocks": gauge("kv_blocks_free", "Free KV blocks"),
        "blocks": gauge("kv_blocks", "KV blocks"),
        "utilization": gauge(
            "utilization", "Fraction of recent time in which the instances had work"
        ),
        "late": gauge("late", "1 when every queue of the cell is past its TTFT target"),
    }
    counters = {
        "prompt_tokens": counter("prompt_tokens", "Prompt tokens that instances have started"),
        "cached_tokens": counter("prompt_tokens_cached", "Of those, tokens found in prefix caches"),
        "lost_tokens": counter(
            "prefix_tokens_lost", "Prompt tokens in the prefix caches of instances that left"
        ),
        "moved_tokens": counter(
            "prefix_tokens_moved", "Prompt tokens that instances took along to another cell"
        ),
        "decodes": counter("decodes", "Decodes of speculating engines, by request and step"),
        "decoded_tokens": counter("decoded_tokens", "Tokens produced by those decodes"),
    }
    for summary in summaries:
        cell = summary.cell
        values = {
            "instances": len(cell.instances),
            "high_priority": len(cell.high_priority),
            "waiting": cell.num_waiting,
            "running": cell.num_running,
            "prefilling": cell.num_prefilling,
            "decoding": cell.num_decoding,
            "free_blocks": cell.free_blocks,
            "blocks": cell.num_blocks,
            "utilization": summary.utilization,
            "late": int(summary.late),
        }
        for key, value in values.items():
            gauges[key].labels(**names, cell=cell.name).set(value)
        for key, counted in counters.items():
            counted.add_metric([*names.values(), cell.name], getattr(cell, key))
    registry.register(_Counted(tuple(counters.values())))
    return generate_latest(registry).decode()


@dataclass(frozen=True)
class Source:
    """A page of metrics from one process."""

    page: str | None
    """None if it did not answer."""
    labels: dict[str, str]
    """Labels to add to each sample."""


def sources_page(sources: Sequence[Source], names: dict[str, str]) -> str:
    """Return a page that shows which sources answered: sums drop without the missing ones."""
    registry = CollectorRegistry()
    up = GaugeMetricFamily(
        "macroserve_metrics_source_up",
        "1 if the ingress or instance returned its metrics in time",
        labels=(*names, "source"),
    )
    for source in sources:
        name = source.labels.get("instance") or source.labels["ingress"]
        up.add_metric([*names.values(), name], float(source.page is not None))
    registry.register(_Counted((up,)))
    return generate_latest(registry).decode()


async def scrape(http: aiohttp.ClientSession, url: str) -> str | None:
    """Return a metrics page; None without an answer in time."""
    try:
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
        async with http.get(url, timeout=timeout) as response:
            return await response.text() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        return None


def merge(sources: Iterable[Source]) -> str:
    """Merge the pages of sources into one, with one header for each metric family."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for source in sources:
        for family in text_string_to_metric_families(source.page or ""):
            # The parser removes the suffix of counters, which the text format requires.
            name = family.name + "_total" if family.type == "counter" else family.name
            heads.setdefault(
                family.name, f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}\n"
            )
            lines = samples.setdefault(family.name, [])
            lines.extend(_line(sample, source.labels) for sample in family.samples)
    return "".join(heads[name] + "".join(lines) for name, lines in samples.items())


def _line(sample: Sample, labels: dict[str, str]) -> str:
    pairs = {**sample.labels, **labels}
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())
    return (
        f"{sample.name}{{{text}}} {sample.value}\n" if text else f"{sample.name} {sample.value}\n"
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
