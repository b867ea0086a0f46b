"""Reports are written for people, as JSON for programs, and as plots."""

import json
import struct
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from macroserve.bench.serve.goodput import Goodput
from macroserve.bench.serve.metrics import summarize
from macroserve.bench.serve.plot import plot_goodput, plot_run
from macroserve.bench.serve.record import Failure, RequestRecord
from macroserve.bench.serve.report import (
    goodput_report,
    goodput_sentence,
    plan_sentence,
    run_report,
    write_json,
)
from macroserve.bench.serve.result import Result, Run
from macroserve.bench.serve.run import LiveView
from macroserve.core.request import Slo
from macroserve.workload.arrivals import Arrival

SLO = Slo(ttft_s=1.0, tpot_s=0.1)

GOOD = RequestRecord(
    index=0,
    scheduled_s=1.0,
    sent_s=1.001,
    ended_s=2.0,
    num_prompt_tokens=30,
    num_planned_tokens=3,
    num_tokens=3,
    http_status=200,
    x_request_id="r-1",
    ttft_s=0.5,
    e2e_s=0.6,
    gaps_s=array("f", [0.075, 0.025]),
)
SLOW = replace(GOOD, index=1, ttft_s=1.5, e2e_s=1.6)
FAILED = replace(
    GOOD, index=2, failure=Failure.HTTP, http_status=503, detail="try [later]", ttft_s=None
)
INTERRUPTED = replace(GOOD, index=3, failure=Failure.INTERRUPTED)
MIXED = [GOOD, SLOW, FAILED, INTERRUPTED]


def make_run(records: list[RequestRecord], intensity: float = 4.0) -> Run:
    return Run(intensity, 5, records, summarize(records, SLO), client_cpu=0.12)


def shown(renderable: RenderableType) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_plan_is_described_in_words() -> None:
    plan = [Arrival(0.0, 100, 10), Arrival(4.0, 2100, 30)]
    assert plan_sentence(plan) == (
        "2 requests over 4.0 s (0.50 req/s), on average 1,100 tokens in and 20 out"
    )
    assert plan_sentence(plan[:1]) == "1 requests over 0.0 s, on average 100 tokens in and 10 out"


def test_report_of_a_run_has_the_expected_text() -> None:
    text = shown(run_report(make_run(MIXED), SLO))
    ttft, tpot = (
        next(line for line in text.splitlines() if name in line) for name in ("TTFT", "TPOT")
    )
    assert [cell.strip() for cell in ttft.split("│")[1:10]] == (
        ["TTFT", "1.00 s", "1.00 s", "1.40 s", "1.45 s", "1.49 s", "1.50 s", "1.00 s", "33.3%"]
    )
    assert "50.0 ms" in tpot and "66.7%" in tpot
    for expected in (
        "attainment  33.3% within their targets",
        "goodput     0.50 req/s within their targets",
        "4 sent of 5: 2 succeeded, 1 failed, 1 interrupted",
        "4.00 req/s offered, 1.00 req/s served over 2.0 s",
        "30 tok/s in, 3 tok/s out",
        "1.0 ms late at p99, 12% of a core",
        "1 failed: http (HTTP 503), such as: try [later]",
    ):
        assert expected in text
    tbt = next(line for line in text.splitlines() if "TBT" in line)
    assert "%" not in tbt, "it has no target"
    assert "ignore_eos" not in text
    assert "The client itself" not in text


def test_report_shows_what_prefix_caches_had_where_it_is_known() -> None:
    known = [replace(GOOD, num_cached_tokens=12)]
    assert "cache hits  40.0% of the prompt tokens" in shown(run_report(make_run(known), SLO))
    assert "cache hits" not in shown(run_report(make_run(MIXED), SLO))


def test_report_shows_tbt_beside_its_target() -> None:
    text = shown(run_report(make_run(MIXED), replace(SLO, tbt_s=0.25)))
    tbt = next(line for line in text.splitlines() if "TBT" in line)
    assert [cell.strip() for cell in tbt.split("│")[8:10]] == ["250.0 ms", "66.7%"]


def test_report_of_no_records_has_the_expected_text() -> None:
    text = shown(run_report(make_run([]), SLO))
    assert "attainment  - within their targets" in text


def test_report_with_unsound_figures_has_remarks() -> None:
    late = replace(GOOD, sent_s=1.06)
    short = replace(GOOD, num_tokens=2)
    text = shown(run_report(make_run([late, short, short]), SLO))
    assert "2 answers were shorter than requested" in text
    assert "The client itself was late by 58.8 ms (p99)" in text


@pytest.mark.parametrize(("end_s", "is_told"), [(400.0, True), (200.0, False)])
def test_report_of_a_long_run_whose_queue_grows_says_so(end_s: float, is_told: bool) -> None:
    stuck = [replace(GOOD, sent_s=at_s, ttft_s=None, ended_s=end_s) for at_s in range(100, 200)]
    text = shown(run_report(make_run(stuck), SLO))
    assert ("The queue grew up to the end" in text) is is_told


@pytest.mark.parametrize(
    ("goodput", "sentence"),
    [
        (None, "The search did not end."),
        (Goodput(0.9, None), "No load tried holds 90% attainment."),
        (Goodput(0.9, 12.5, False, 0.95), "Goodput at 90% attainment: 12.5 req/s."),
        (
            Goodput(0.9, 12.5, True, 0.95),
            "Goodput at 90% attainment: 12.5 req/s or more: it held at the highest load that could "
            "be tried.",
        ),
        (
            Goodput(0.9, 12.5, False, 0.85),
            "Goodput at 90% attainment: 12.5 req/s, but half of that gave 85.0%: the attainment "
            "does not fall steadily with the load, see the probes.",
        ),
    ],
)
def test_goodput_is_described_in_words(goodput: Goodput | None, sentence: str) -> None:
    assert goodput_sentence(goodput, "req/s") == sentence


def test_report_of_a_search_lists_probes_by_load() -> None:
    runs = (make_run([GOOD], 8.0), make_run([GOOD, SLOW], 16.0), make_run([GOOD], 4.0))
    text = shown(goodput_report(Result("m", runs, Goodput(0.9, 8.0, False, 1.0)), "req/s"))
    rows = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert rows == ["4", "8", "16"]
    assert "Goodput at 90% attainment: 8 req/s." in text


def test_report_of_a_search_tells_the_cache_hits_where_the_endpoint_does() -> None:
    found = replace(GOOD, num_cached_tokens=12)
    runs = (make_run([found], 8.0), make_run([GOOD], 16.0))
    text = shown(goodput_report(Result("m", runs, Goodput(0.9, 8.0, False, 1.0)), "req/s"))
    assert "cache hits" in text and "40.0%" in text
    text = shown(goodput_report(Result("m", runs[1:], Goodput(0.9, 8.0, False, 1.0)), "req/s"))
    assert "cache hits" not in text


def test_json_report_has_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = Result("m", (make_run(MIXED),), Goodput(0.9, 8.0, False, 1.0))
    write_json(path, {"trace": Path("a/b.csv"), "seed": 3}, result, SLO)
    report = json.loads(path.read_text())
    assert report["config"] == {"trace": "a/b.csv", "seed": 3}
    assert report["goodput"]["load"] == 8.0
    [run] = report["runs"]
    assert (run["intensity"], run["num_planned"], run["client_cpu"]) == (4.0, 5, 0.12)
    assert run["summary"]["attainment"] == 1 / 3
    assert run["summary"]["ttft"]["p50"] == 1.0
    assert run["summary"]["failures"] == [
        {"failure": "http", "http_status": 503, "count": 1, "detail": "try [later]"}
    ]
    good, slow, failed, interrupted = run["requests"]
    assert good == {
        "index": 0,
        "slo_class": None,
        "turn": 0,
        "num_unsent": 0,
        "scheduled_s": 1.0,
        "sent_s": 1.001,
        "ended_s": 2.0,
        "num_prompt_tokens": 30,
        "num_planned_tokens": 3,
        "num_tokens": 3,
        "num_cached_tokens": None,
        "failure": None,
        "detail": "",
        "http_status": 200,
        "x_request_id": "r-1",
        "ttft_s": 0.5,
        "tpot_s": pytest.approx(0.05),
        "max_tbt_s": pytest.approx(0.075),
        "e2e_s": 0.6,
        "meets_slo": True,
        "tbt_us": [75_000, 25_000],
    }
    assert not slow["meets_slo"]
    assert (failed["failure"], failed["ttft_s"]) == ("http", None)
    assert interrupted["failure"] == "interrupted"


def png_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels of a PNG file that has its beginning and its end."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and b"IEND" in data[-12:]
    return struct.unpack(">II", data[16:24])


def spread(num: int) -> list[RequestRecord]:
    return [
        replace(GOOD, index=i, scheduled_s=i * 0.5, ended_s=i * 0.5 + 2, ttft_s=0.01 * (i + 1))
        for i in range(num)
    ]


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(spread(100), id="many"),
        pytest.param(MIXED, id="few"),
        pytest.param([FAILED], id="all-failed"),
        pytest.param([INTERRUPTED], id="all-interrupted"),
        pytest.param([replace(GOOD, num_tokens=1, e2e_s=0.5, gaps_s=())], id="one-token"),
        pytest.param([], id="none"),
    ],
)
def test_run_is_plotted_as_png(tmp_path: Path, records: list[RequestRecord]) -> None:
    path = tmp_path / "run.png"
    plot_run(path, "m", make_run(records), SLO)
    assert png_size(path) == (1650, 1125)


@pytest.mark.parametrize(
    "goodput", [None, Goodput(0.9, None), Goodput(0.9, 8.0, False, 0.8)], ids=str
)
def test_search_is_plotted_as_png(tmp_path: Path, goodput: Goodput | None) -> None:
    path = tmp_path / "goodput.picture"
    runs = (make_run([GOOD], 8.0), make_run([], 0.25), make_run([GOOD, SLOW], 16.0))
    plot_goodput(path, Result("m", runs, goodput), 0.9, SLO, "req/s")
    assert png_size(path) == (1200, 750)


def test_live_view_counts_requests() -> None:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture, LiveView(console, "4 req/s", 5, SLO) as view:
        for _ in MIXED:
            view.on_sent()
        for record in MIXED:
            view.on_done(record)
    text = capture.get()
    assert "4 req/s" in text
    assert "sent 4  in flight 1  done 3  failed 1  attainment 33.3%" in text
