"""The merged page shows Prometheus the counts of every source."""

import asyncio

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.ingress_counts import counted as value_of
from support.slo_classes import BATCH, INTERACTIVE, default_class
from support.token_requests import token_request

from macroserve.api import messages
from macroserve.core.request import Slo
from macroserve.core.status import CellView
from macroserve.engine.tokens import RefusedError, StopStringMet
from macroserve.serving.ingress.metrics import (
    IngressMetrics,
    Source,
    cell_page,
    merge,
    sources_page,
)
from macroserve.serving.ingress.served_request import ServedRequest

DEFAULT = default_class(Slo(1.0, 0.1))
SOURCES = (("a", 2), ("b", 3))
REQUEST = token_request("r", slo=DEFAULT.slo)


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def counted(requests: int) -> IngressMetrics:
    metrics = IngressMetrics("ns", "llama", [DEFAULT])
    for _ in range(requests):
        with metrics.request(0.0, REQUEST) as record:
            record.tokens(1, 0.5)
            record.tokens(10, 1.0)
    return metrics


def served(slo: Slo) -> ServedRequest:
    """Return a request with these targets that arrived at 0 s."""
    return ServedRequest(0.0, messages.RequestInfo(route_id="r", age_s=0.0, slo=slo))


def test_merged_pages_keep_every_sample_under_its_labels() -> None:
    merged = merge([Source(counted(n).page(), {"ingress": name}) for name, n in SOURCES])
    names = {"namespace": "ns", "macroinstance": "llama"}
    values = samples(merged)
    for ingress, count in SOURCES:
        labels = {**names, "outcome": "ok", "slo_class": "default", "ingress": ingress}.items()
        labels = frozenset(labels)
        assert values["macroserve_requests_total", labels] == count
    heads = [line for line in merged.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert "# TYPE macroserve_requests_total counter" in heads
    assert "# TYPE macroserve_ttft_seconds histogram" in heads


def test_merged_pages_keep_strange_label_values() -> None:
    value = 'a"b\\c\nd'
    page = merge([Source("# TYPE x gauge\nx 1\n", {"instance": value})])
    assert samples(page) == {("x", frozenset({("instance", value)})): 1.0}


def test_merged_page_tells_which_sources_did_not_answer() -> None:
    sources = [
        Source(counted(2).page(), {"ingress": "a"}),
        Source(None, {"ingress": "b"}),
        Source("", {"macroinstance": "llama", "instance": "instance-0", "pool": "LP"}),
    ]
    values = samples(merge([*sources, Source(sources_page(sources, {"namespace": "ns"}), {})]))
    up = {
        dict(labels)["source"]: value
        for (name, labels), value in values.items()
        if name == "macroserve_metrics_source_up"
    }
    assert up == {"a": 1, "b": 0, "instance-0": 1}


def test_request_of_no_client_is_in_no_metric() -> None:
    metrics = IngressMetrics("ns", "llama", [DEFAULT])
    before = metrics.page()
    with metrics.request(0.0, token_request("ready", probe=True)) as record:
        assert metrics.page() == before
        record.tokens(1, 0.5)
    assert metrics.page() == before


def test_metrics_of_cells_have_their_figures() -> None:
    cell = CellView("cell-0", ("a", "b"), ("b",), num_waiting=3, num_running=4, num_blocks=10)
    cell = msgspec.structs.replace(
        cell,
        num_prefilling=1,
        num_decoding=3,
        prompt_tokens=70,
        cached_tokens=50,
        decodes=30,
        decoded_tokens=80,
        lost_tokens=20,
        moved_tokens=10,
    )
    page = cell_page([messages.CellSummary(cell, late=True)], {"namespace": "ns"})
    values = samples(page)
    labels = frozenset({"namespace": "ns", "cell": "cell-0"}.items())
    assert values["macroserve_cell_instances", labels] == 2
    assert values["macroserve_cell_high_priority_instances", labels] == 1
    assert values["macroserve_cell_requests_waiting", labels] == 3
    assert values["macroserve_cell_requests_running", labels] == 4
    assert values["macroserve_cell_requests_prefilling", labels] == 1
    assert values["macroserve_cell_requests_decoding", labels] == 3
    assert values["macroserve_cell_late", labels] == 1
    assert values["macroserve_cell_prompt_tokens_total", labels] == 70
    assert values["macroserve_cell_prompt_tokens_cached_total", labels] == 50
    assert values["macroserve_cell_prefix_tokens_lost_total", labels] == 20
    assert values["macroserve_cell_prefix_tokens_moved_total", labels] == 10
    assert values["macroserve_cell_decodes_total", labels] == 30
    assert values["macroserve_cell_decoded_tokens_total", labels] == 80
    assert "# TYPE macroserve_cell_prompt_tokens_cached_total counter" in page
    assert "_created" not in page, "the counts are older than the page"


@pytest.mark.parametrize(
    ("times", "ttft_s", "tpot_s", "attained"),
    [
        ([], None, None, False),
        ([(1, 0.9)], 0.9, None, True),
        ([(1, 1.1)], 1.1, None, False),
        ([(1, 0.5), (1, 0.6), (3, 0.9)], 0.5, 0.1, True),
        ([(1, 0.5), (1, 0.7)], 0.5, 0.2, False),
        ([(4, 0.5)], 0.5, 0.0, True),
    ],
)
def test_record_times_what_its_client_sees(times, ttft_s, tpot_s, attained) -> None:
    record = served(Slo(1.0, 0.1000001))
    for count, now in times:
        record.tokens(count, now)
    assert record.ttft_s == ttft_s
    assert record.tpot_s == (None if tpot_s is None else pytest.approx(tpot_s))
    assert record.attained is attained


@pytest.mark.parametrize(("num_slow", "attained"), [(1, True), (2, False)])
def test_record_with_one_slow_gap_in_a_hundred_attains(num_slow: int, attained: bool) -> None:
    record, now = served(Slo(1.0, 0.1, 0.2)), 0.5
    record.tokens(1, now)
    for index in range(100):
        now += 0.3 if index < num_slow else 0.05
        record.tokens(1, now)
        record.tokens(0, now + 1.0)
    assert record.attained is attained


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (None, "ok"),
        (asyncio.CancelledError(StopStringMet(3)), "ok"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
        (RuntimeError("x"), "failed"),
        (RefusedError(429, "late"), "refused"),
    ],
)
def test_served_request_has_the_outcome_of_its_end(end: BaseException | None, outcome: str) -> None:
    metrics = IngressMetrics("ns", "llama", [DEFAULT])
    try:
        with metrics.request(0.0, REQUEST):
            if end is not None:
                raise end
    except BaseException as error:
        assert error is end
    assert value_of(metrics, "macroserve_requests_total", outcome=outcome) == 1
    assert value_of(metrics, "macroserve_requests_in_flight") == 0


def test_requests_are_counted_by_class_and_judged_by_its_targets() -> None:
    metrics = IngressMetrics("ns", "llama", [DEFAULT, INTERACTIVE, BATCH])
    for targets in (INTERACTIVE, BATCH, BATCH):
        request = token_request("r", slo=targets.slo, slo_class=targets.name)
        with metrics.request(0.0, request) as record:
            record.tokens(1, 2.0)
    metrics.refused("late", "interactive")

    def of(name: str, slo_class: str) -> float:
        return value_of(metrics, f"macroserve_{name}", slo_class=slo_class)

    assert [of("requests_total", c) for c in ("default", "interactive", "batch")] == [0, 1, 2]
    assert [of("requests_attained_total", c) for c in ("interactive", "batch")] == [0, 2]
    assert [of("ttft_seconds_count", c) for c in ("interactive", "batch")] == [1, 2]
    assert of("requests_refused_total", "interactive") == 1
    goals = [of("slo_attainment_target", c) for c in ("default", "interactive", "batch")]
    assert goals == [0.9, 0.95, 0.8]
