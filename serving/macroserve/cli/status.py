"""``macroserve status``: cells and instances as a table."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from macroserve.api.class_attainment import recent_by_class
from macroserve.api.client import local_client
from macroserve.api.messages import CellReport, Report
from macroserve.api.scheduling_state import (
    CellState,
    InstanceState,
    StepTimes,
    cell_states,
    recent_refusals,
)
from macroserve.local.state import RunningDeployment

REFRESH_S = 0.5
PHASE_STYLES = {"prefill": "bold yellow", "decode": "green", "mixed": "cyan", "idle": "dim"}


async def show_once(deployment: RunningDeployment, console: Console) -> None:
    """Show the deployment once. Raises AdminError if it does not answer."""
    async for report in _reports(deployment):
        console.print(table(deployment.name, report))
        return


async def watch(deployment: RunningDeployment, console: Console) -> None:
    """Show the deployment repeatedly, until cancelled."""
    with Live(console=console, refresh_per_second=4, screen=False) as live:
        async for report in _reports(deployment):
            live.update(table(deployment.name, report))
            await asyncio.sleep(REFRESH_S)


async def _reports(deployment: RunningDeployment) -> AsyncIterator[Report]:
    async with local_client(deployment.private, deployment.admin_token) as admin:
        while True:
            yield await admin.report()


def table(name: str, report: Report) -> Group:
    instances = [i for cell in report.cells for i in cell.instances]
    head = Text(
        f"{name}: {len(instances)} instances in {len(report.cells)} cells, "
        f"{sum(i.status.num_running for i in instances)} requests running, "
        f"{sum(i.status.num_waiting + i.in_flight for i in instances)} waiting"
    )
    caches = {f"hybrid cache {i.hybrid_cache}" for i in instances}
    # Instances without a known decision have an empty text.
    caches |= {f"prefix caching {i.prefix_caching}" for i in instances if i.prefix_caching}
    told = [*sorted(caches), *_classes(report), *_refusals(report)]
    cells = cell_states(report.cells)
    return Group(head, Text("\n".join(told)), _cells(report), _instances(cells))


def _classes(report: Report) -> list[str]:
    """Return a line with the attainment of each SLO class, if the spec defines any."""
    ended = recent_by_class(report.cells)
    if len(ended) == 1:
        return []
    shares = (f"{name} {_share(e.attained, e.finished)}" for name, e in ended.items())
    return [f"SLO met by class, last 60 s: {', '.join(shares)}"]


def _refusals(report: Report) -> list[str]:
    """Return a line with the refusals by reason, if any."""
    refused = recent_refusals(report.cells)
    if not refused:
        return []
    counts = (f"{reason} {num}" for reason, num in refused)
    return [f"Refused, last 60 s: {', '.join(counts)}"]


def _table(title: str) -> Table:
    """Return a table that fits 80 columns; headings of several words may take two lines."""
    return Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )


def _cells(report: Report) -> Table:
    result = _table("Cells")
    result.add_column("Cell", no_wrap=True)
    for column in (
        "Instances",
        "HP",
        "Prefill",
        "Decode",
        "Running",
        "Waiting",
        "KV used",
        "SLO met",
        "Last 60 s",
    ):
        result.add_column(column, justify="right", no_wrap=" " not in column)
    for cell in report.cells:
        view = cell.cell
        phases = [i.status.phase.value for i in cell.instances]
        result.add_row(
            view.name,
            str(len(view.instances)),
            str(len(view.high_priority)),
            str(phases.count("prefill") + phases.count("mixed")),
            str(phases.count("decode")),
            str(view.num_running),
            str(view.num_waiting),
            _share(view.num_blocks - view.free_blocks, view.num_blocks),
            _share(view.attained, view.finished),
            _recent(cell),
        )
    return result


def _instances(cells: Iterable[CellState]) -> Table:
    result = _table("Instances")
    for column in ("Instance", "Cell", "Pool", "Phase"):
        result.add_column(column, no_wrap=True)
    for column in (
        "Run",
        "Wait",
        "Oldest wait, s",
        "Slack p10, s",
        "KV used",
        "KV hits",
        "SLO met",
        "Step, ms",
    ):
        result.add_column(column.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for cell in cells:
        for instance in cell.instances:
            result.add_row(*_instance_row(instance))
    return result


def _instance_row(state: InstanceState) -> list[Text | str]:
    phase = state.phase.value if state.phase else "-"
    shown = Text("draining", "red") if state.draining else Text(phase, PHASE_STYLES.get(phase, ""))
    return [
        state.name,
        state.cell,
        state.pool.label,
        shown,
        str(state.num_running),
        str(state.num_waiting),
        f"{state.oldest_wait_s or 0.0:.2f}",
        "-" if state.slack_p10_s is None else f"{state.slack_p10_s:+.2f}",
        _share(*state.kv_used),
        _share(*state.hits),
        _share(*state.attained),
        _step(state.steps),
    ]


def _step(steps: StepTimes | None) -> str:
    if steps is None:
        return "-"
    return "/".join(f"{1e3 * s:.{0 if s >= 0.01 else 1}f}" for s in steps)


def _recent(cell: CellReport) -> str:
    return _share(cell.recent_attained, cell.recent_finished)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
