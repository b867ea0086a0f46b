"""Reports of a run: tables for people, JSON for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from macroserve.bench.durations import seconds
from macroserve.bench.serve.goodput import Goodput
from macroserve.bench.serve.metrics import ClassSummary, Distribution, Summary
from macroserve.bench.serve.record import RequestRecord
from macroserve.bench.serve.result import Result, Run
from macroserve.core.request import Slo
from macroserve.workload.arrivals import Arrival

MAX_QUEUE_GROWTH = 0.05
"""Growth of the queue per arriving request above which a load cannot be held."""

MIN_GROWTH_S = 300.0
"""Shortest run that shows whether its queue grows, seconds."""

MAX_SEND_LAG_S = 0.05
"""99th percentile of the client's delays above which it is the bottleneck, seconds."""


def plan_sentence(planned: Sequence[Arrival]) -> str:
    num_requests = sum(arrival.num_requests for arrival in planned)
    num_chats = len(planned)
    span_s = planned[-1].at_s
    begin, unit = "", "req/s"
    if num_requests > num_chats:
        begin, unit = f" of {num_chats:,} conversations that begin", "conversations/s"
    rate = f" ({num_chats / span_s:.2f} {unit})" if span_s else ""
    num_prompt_tokens = sum(sum(arrival.message_lengths) for arrival in planned)
    num_output_tokens = sum(arrival.num_new_tokens for arrival in planned) - num_prompt_tokens
    mean_prompt, mean_output = num_prompt_tokens / num_requests, num_output_tokens / num_requests
    return (
        f"{num_requests:,} requests{begin} over {span_s:,.1f} s{rate}, "
        f"on average {mean_prompt:,.0f} tokens in and {mean_output:,.0f} out"
        + (", without earlier turns" if begin else "")
    )


def run_report(run: Run, slo: Slo) -> RenderableType:
    remarks = (Text(remark, style="yellow") for remark in remarks_on(run))
    classes = [_class_table(run.summary.classes)] if run.summary.classes else []
    return Group(_latency_table(run.summary, slo), *classes, _totals_table(run), *remarks)


def goodput_report(result: Result, unit: str) -> RenderableType:
    """Return the table of probes and the result of the search."""
    table = Table(title="Probes", title_justify="left")
    columns = [unit, "offered req/s", "requests", "failed", "TTFT p90", "TPOT p90", "attainment"]
    has_hits = any(run.summary.cached_share is not None for run in result.runs)
    for name in columns + ["cache hits"] * has_hits:
        table.add_column(name, justify="right")
    for run in sorted(result.runs, key=lambda run: run.intensity):
        summary = run.summary
        table.add_row(
            f"{run.intensity:.4g}",
            f"{summary.offered_rate:.2f}",
            f"{summary.num_sent:,}",
            f"{summary.num_failed:,}",
            seconds(summary.ttft and summary.ttft.p90),
            seconds(summary.tpot and summary.tpot.p90),
            _percent(summary.attainment),
            *[_percent(summary.cached_share)] * has_hits,
        )
    remarks = dict.fromkeys(remark for run in result.runs for remark in remarks_on(run))
    return Group(
        table,
        Text(goodput_sentence(result.goodput, unit), style="bold"),
        *(Text(remark, style="yellow") for remark in remarks),
    )


def goodput_sentence(goodput: Goodput | None, unit: str) -> str:
    if goodput is None:
        return "The search did not end."
    level = f"{goodput.level:.0%}"
    if goodput.load is None:
        return f"No load tried holds {level} attainment."
    sentence = f"Goodput at {level} attainment: {goodput.load:.4g} {unit}"
    if goodput.is_capped:
        sentence += " or more: it held at the highest load that could be tried"
    if not goodput.holds_below:
        sentence += (
            f", but half of that gave {_percent(goodput.lower_attainment)}: "
            "the attainment does not fall steadily with the load, see the probes"
        )
    return sentence + "."


def remarks_on(run: Run) -> list[str]:
    """Return remarks on failures and on signs of invalid results."""
    summary = run.summary
    remarks = [
        f"{failed.count:,} failed: {failed.failure}"
        + (f" (HTTP {failed.http_status})" if failed.http_status else "")
        + (f", such as: {failed.detail}" if failed.detail else "")
        for failed in summary.failures
    ]
    if summary.num_short:
        remarks.append(
            f"{summary.num_short:,} answers were shorter than requested: "
            "the endpoint may not know ignore_eos, or its context may be too short."
        )
    if summary.num_unsent:
        remarks.append(
            f"{summary.num_unsent:,} turns were not sent: a request of their conversation failed, "
            "or it had reached the model's length."
        )
    if summary.elapsed_s >= MIN_GROWTH_S and summary.queue_growth > MAX_QUEUE_GROWTH:
        remarks.append(
            "The queue grew up to the end, so a longer run would have a lower attainment."
        )
    if summary.send_lag and summary.send_lag.p99 > MAX_SEND_LAG_S:
        remarks.append(
            f"The client itself was late by {seconds(summary.send_lag.p99)} (p99): "
            "the load was not as planned; use a faster machine or several."
        )
    return remarks


def write_json(path: Path, config: Mapping[str, object], result: Result, slo: Slo) -> None:
    """Write all results as JSON: ``{"config", "goodput", "runs": [{..., "summary", "requests"}]}``.

    Durations are in seconds, but each request's ``tbt_us`` is in whole microseconds.
    """
    report = {
        "config": config,
        "goodput": result.goodput,
        "runs": [
            {
                "intensity": run.intensity,
                "num_planned": run.num_planned,
                "client_cpu": run.client_cpu,
                "summary": run.summary,
                "requests": [_row(record, slo) for record in run.records],
            }
            for run in result.runs
        ],
    }
    path.write_bytes(msgspec.json.encode(report, enc_hook=str) + b"\n")


def _row(record: RequestRecord, slo: Slo) -> dict[str, object]:
    return {
        "index": record.index,
        "slo_class": record.slo_class and record.slo_class.name,
        "turn": record.turn,
        "num_unsent": record.num_unsent,
        "scheduled_s": record.scheduled_s,
        "sent_s": record.sent_s,
        "ended_s": record.ended_s,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_planned_tokens": record.num_planned_tokens,
        "num_tokens": record.num_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "failure": record.failure,
        "detail": record.detail,
        "http_status": record.http_status,
        "x_request_id": record.x_request_id,
        "ttft_s": record.ttft_s,
        "tpot_s": record.tpot_s,
        "max_tbt_s": record.max_tbt_s,
        "e2e_s": record.e2e_s,
        "meets_slo": record.meets(slo),
        "tbt_us": [round(gap_s * 1e6) for gap_s in record.gaps_s],
    }


def _latency_table(summary: Summary, slo: Slo) -> Table:
    table = Table(title="Latency of the requests that succeeded", title_justify="left")
    table.add_column("")
    for name in ("mean", "p50", "p90", "p95", "p99", "max", "SLO", "within"):
        table.add_column(name, justify="right")
    rows = (
        ("TTFT", summary.ttft, slo.ttft_s, summary.ttft_attainment),
        ("TPOT", summary.tpot, slo.tpot_s, summary.tpot_attainment),
        ("TBT", summary.tbt, slo.tbt_s, summary.tbt_attainment),
        ("end to end", summary.e2e, None, None),
    )
    for name, latency, target_s, share in rows:
        figures = astuple(latency) if latency else (None,) * len(fields(Distribution))
        slo_cells = ("", "") if target_s is None else (seconds(target_s), _percent(share))
        table.add_row(name, *map(seconds, figures), *slo_cells)
    return table


def _class_table(classes: Sequence[ClassSummary]) -> Table:
    table = Table(title="SLO classes", title_justify="left")
    table.add_column("")
    columns = ("requests", "within", "TTFT p50", "p90", "p99", "SLO", "TPOT p50", "p90", "p99")
    for name in (*columns, "SLO"):
        table.add_column(name, justify="right")
    for each in classes:
        row = [f"{each.num_requests:,}", _percent(each.attainment)]
        for found, target_s in ((each.ttft, each.slo.ttft_s), (each.tpot, each.slo.tpot_s)):
            figures = (found.p50, found.p90, found.p99) if found else (None,) * 3
            row += [*map(seconds, figures), seconds(target_s)]
        table.add_row(each.name, *row)
    return table


def _totals_table(run: Run) -> Table:
    summary = run.summary
    table = Table.grid(padding=(0, 2))
    share = f"{_percent(summary.attainment)} within their targets"
    table.add_row("attainment", Text(share, style="bold"))
    table.add_row("goodput", f"{summary.goodput:.2f} req/s within their targets")
    table.add_row(
        "requests",
        f"{summary.num_sent:,} sent of {run.num_planned:,}: {summary.num_succeeded:,} succeeded, "
        f"{summary.num_failed:,} failed, {summary.num_interrupted:,} interrupted",
    )
    table.add_row(
        "rate",
        f"{summary.offered_rate:.2f} req/s offered, {summary.request_throughput:.2f} req/s served "
        f"over {summary.elapsed_s:.1f} s",
    )
    table.add_row(
        "tokens",
        f"{summary.prompt_token_throughput:,.0f} tok/s in, "
        f"{summary.output_token_throughput:,.0f} tok/s out",
    )
    if summary.cached_share is not None:
        table.add_row("cache hits", f"{_percent(summary.cached_share)} of the prompt tokens")
    lag_s = summary.send_lag and summary.send_lag.p99
    table.add_row("client", f"{seconds(lag_s)} late at p99, {run.client_cpu:.0%} of a core")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
