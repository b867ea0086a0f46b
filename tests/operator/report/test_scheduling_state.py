"""The status has a short scheduling state, which stays equal while nothing happens."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support import crd
from support.instance_reports import busy, busy_cell
from support.reconcile_results import NOW, observation, reconcile_result

from macroserve.api.messages import CellReport, HeadReport, InstanceReport, Report
from macroserve.core.status import UNHEARD, Phase
from macroserve.operator.report.reporter import FIGURES_EVERY, Reporter
from macroserve.operator.report.scheduling_state import MAX_INSTANCES, cell_figures, scheduling
from macroserve.operator.report.status import status

PAGE = Path(__file__).parents[3] / "docs" / "kubernetes" / "describe.md"

IDLE = {
    "phase": Phase.IDLE,
    "phase_s": 3600.25,
    "num_waiting": 0,
    "num_running": 0,
    "num_decoding": 0,
    "saved_tpot_p10_s": None,
    "free_blocks": 1000,
    "hidden_blocks": 0,
    "oldest_wait_s": 0.0,
}


def state_of(*cells: CellReport, before: Any = None, later_s: float = 0.0) -> Any:
    seen = observation(
        report=Report(cells),
        now=NOW + timedelta(seconds=later_s),
        status={"scheduling": before} if before else {},
    )
    return scheduling(seen)


def idle(number: int, for_s: float = 3600.25, **differs: Any) -> InstanceReport:
    return busy(number, {**IDLE, "phase_s": for_s}, **{"in_flight": 0, **differs})


def test_scheduling_state_has_what_each_instance_does() -> None:
    report = busy_cell(
        "cell-0",
        busy(1, draining=True),
        busy(0),
        idle(2),
        recent_refused={"trials_busy": 1, "no_instance": 4},
    )
    assert state_of(report) == {
        "time": "2026-03-01T12:00:00Z",
        "instances": [
            {
                "name": "instance-0",
                "cell": "cell-0",
                "pool": "HP",
                "phase": "decode",
                "phaseSince": "2026-03-01T11:59:50Z",
                "running": 20,
                "waiting": 5,
                "oldestWait": "1.5s",
                "slack": "310ms",
                "kvUsed": "0.62",
                "hiddenUsed": "0.05",
                "prefixCacheHitRatio": "0.62",
                "stepTime": "21ms",
                "predictedStepTime": "20ms",
            },
            {
                "name": "instance-1",
                "cell": "cell-0",
                "pool": "LP",
                "phase": "prefill",
                "phaseSince": "2026-03-01T11:59:49Z",
                "draining": True,
                "running": 21,
                "waiting": 6,
                "oldestWait": "2.5s",
                "slack": "-690ms",
                "kvUsed": "0.62",
                "hiddenUsed": "0.05",
                "prefixCacheHitRatio": "0.62",
                "stepTime": "22ms",
                "predictedStepTime": "21ms",
            },
            {
                "name": "instance-2",
                "cell": "cell-0",
                "pool": "LP",
                "phase": "idle",
                "phaseSince": "2026-03-01T11:00:00Z",
                "running": 0,
                "waiting": 0,
                "kvUsed": "0.00",
                "prefixCacheHitRatio": "0.62",
                "stepTime": "23ms",
                "predictedStepTime": "22ms",
            },
        ],
        "refusals": [
            {"reason": "no_instance", "count": 4},
            {"reason": "trials_busy", "count": 1},
        ],
    }


def test_cell_has_its_scheduling_state_and_counts_each_kind_of_request() -> None:
    cells = (busy_cell("cell-1", busy(0), busy(1), busy(2)),)
    (found,) = status(reconcile_result(observation(report=Report(cells))), ())["cells"]
    assert found == {
        "name": "cell-1",
        "instances": 3,
        "highPriority": 1,
        "prefilling": 8,
        "decoding": 12,
        "waiting": 5,
        "running": 20,
        "phases": "2 decode, 1 prefill",
        "oldestWait": "3.5s",
        "slack": "-1.7s",
        "kvUsed": "0.62",
        "hiddenUsed": "0.05",
        "prefixCacheHitRatio": "0.38",
        "stepTime": "22ms",
        "predictedStepTime": "21ms",
    }


def test_cell_without_instances_has_no_figures() -> None:
    assert cell_figures(busy_cell("cell-0", recent_prompt_tokens=0)) == {}


def test_instance_before_its_first_report_is_listed_without_figures() -> None:
    unheard = busy(1, status=msgspec.structs.asdict(UNHEARD), in_flight=0)
    assert state_of(busy_cell("cell-0", unheard))["instances"] == [
        {"name": "instance-1", "cell": "cell-0", "pool": "LP", "running": 0, "waiting": 0}
    ]


def test_scheduling_state_without_the_head_is_absent() -> None:
    assert scheduling(observation(report=None)) is None
    assert "scheduling" not in status(reconcile_result(observation(report=None)), ())


# -- equal while nothing happens


@pytest.mark.parametrize("jitter_s", [-0.9, -0.3, 0.0, 0.4, 0.9])
def test_idle_instance_has_the_same_state_an_hour_later(jitter_s: float) -> None:
    first = state_of(busy_cell("cell-0", idle(1)))
    later = busy_cell("cell-0", idle(1, for_s=3600.25, age_s=3600 + jitter_s))
    assert state_of(later, before=first, later_s=3600) == first


def test_phase_that_begins_anew_has_a_new_beginning() -> None:
    first = state_of(busy_cell("cell-0", busy(1, {"phase_s": 30.0})))
    assert first["instances"][0]["phaseSince"] == "2026-03-01T11:59:30Z"
    again = state_of(busy_cell("cell-0", busy(1, {"phase_s": 5.0})), before=first)
    assert again["instances"][0]["phaseSince"] == "2026-03-01T11:59:55Z"
    other = state_of(
        busy_cell("cell-0", busy(1, {"phase": Phase.DECODE, "phase_s": 29.0})), before=first
    )
    assert other["instances"][0]["phaseSince"] == "2026-03-01T11:59:31Z"


def test_time_is_that_of_the_last_change() -> None:
    first = state_of(busy_cell("cell-0", idle(1)))
    same = state_of(busy_cell("cell-0", idle(1, age_s=60.1)), before=first, later_s=60)
    assert same["time"] == first["time"] == "2026-03-01T12:00:00Z"
    refused = busy_cell("cell-0", idle(1, age_s=60.1), recent_refused={"no_instance": 1})
    assert state_of(refused, before=first, later_s=60)["time"] == "2026-03-01T12:01:00Z"


class Writes:
    """An API that counts written statuses."""

    def __init__(self) -> None:
        self.statuses: list[Any] = []

    async def apply_status(self, namespace: str, name: str, status: Any) -> None:
        self.statuses.append(status)

    async def apply(self, kind: object, document: object) -> None:
        pass


def statuses_written(reports: Sequence[CellReport], every_s: float) -> list[Any]:
    """Return the statuses written by reconciles with these reports."""
    api = Writes()
    metadata = {"namespace": "team", "name": "llama", "uid": "u-1"}
    reporter = Reporter(api, {"metadata": metadata})  # type: ignore[arg-type]

    async def report_all() -> None:
        for index, report in enumerate(reports):
            told = HeadReport((report,), running=frozenset({"cell-0"}))
            now = NOW + timedelta(seconds=index * every_s)
            seen = observation(report=told, now=now, status=reporter.status)
            await reporter.report(reconcile_result(seen), ())

    asyncio.run(report_all())
    return api.statuses


def test_idle_macroinstance_is_written_once() -> None:
    """Ages come with a jitter, and the instances' clocks go on."""
    reports = [
        busy_cell("cell-0", *(idle(n, age_s=0.2 + 5 * i + i % 7 / 10) for n in range(3)))
        for i in range(200)
    ]
    assert len(statuses_written(reports, 5.0)) == 1


def test_busy_macroinstance_is_written_every_ten_seconds_at_most() -> None:
    reports = [
        busy_cell(
            "cell-0",
            *(
                busy(n, {"phase_s": i % 3.0, "step_s": 0.02 + i / 900, "num_running": i})
                for n in range(3)
            ),
            recent_refused={"ttft": i},
        )
        for i in range(61)
    ]
    written = statuses_written(reports, 1.0)
    assert len(written) == 60 / FIGURES_EVERY.total_seconds() + 1
    assert written[-1]["scheduling"]["instances"][0]["running"] == 60


# -- bounded


def at_size(num_instances: int) -> dict[str, Any]:
    """Return a status with four cells of as many busy instances, with every figure."""
    cells = [
        busy_cell(
            f"cell-{c}",
            *(busy(n) for n in range(c, num_instances, 4)),
            recent_refused={"ttft": 1000, "tpot": 10, "memory": 1, "no_instance": 1},
        )
        for c in range(4)
    ]
    return status(reconcile_result(observation(report=Report(tuple(cells)))), ())


def test_scheduling_state_of_64_instances_takes_24_kib_at_most() -> None:
    found = at_size(64)
    assert len(found["scheduling"]["instances"]) == 64
    assert "instancesLeftOut" not in found["scheduling"]
    assert len(json.dumps(found["scheduling"], separators=(",", ":"))) < 24 * 1024
    assert len(yaml.safe_dump(found["scheduling"]).splitlines()) < 64 * 15


def test_instances_beyond_64_are_counted() -> None:
    found = at_size(100)["scheduling"]
    assert (
        len(found["instances"])
        == MAX_INSTANCES
        == crd.at("status.scheduling.instances")["maxItems"]
    )
    assert found["instancesLeftOut"] == 36
    numbers = [int(entry["name"].removeprefix("instance-")) for entry in found["instances"]]
    assert numbers[:3] == [0, 4, 8] and numbers[25:27] == [1, 5], "by cells, then numbers"


def test_scheduling_state_without_instances_and_refusals_has_no_empty_lists() -> None:
    assert set(state_of(busy_cell("cell-0", recent_refused={}))) == {"time"}


def test_refusals_are_bounded_whatever_a_later_head_tells() -> None:
    many = {f"reason-{n}": n for n in range(1, 100)}
    found = state_of(busy_cell("cell-0", recent_refused=many))["refusals"]
    assert len(found) == crd.at("status.scheduling.refusals")["maxItems"]
    assert found[0] == {"reason": "reason-99", "count": 99}


@pytest.mark.parametrize("num_instances", [0, 3, 64, 100])
def test_scheduling_state_fits_the_crd(num_instances: int) -> None:
    assert crd.refused(crd.with_status(at_size(num_instances))) == []


def test_every_scheduling_field_of_the_crd_is_told() -> None:
    report = busy_cell("cell-0", busy(1, draining=True), recent_refused={"ttft": 1})
    filled = state_of(report, *(busy_cell(f"cell-{n}", busy(n)) for n in range(2, 70)))
    told = crd.at("status.scheduling")["properties"]
    assert set(told) == set(filled)
    for part in ("instances", "refusals"):
        assert set(told[part]["items"]["properties"]) == set(filled[part][0])


def test_page_on_kubectl_describe_names_every_field_of_the_status() -> None:
    page = PAGE.read_text()
    fields = set(names_of(crd.at("status")))
    assert {"readyInstances", "warmUpSeconds", "phaseSince"} < fields
    assert sorted(field for field in fields if f"`{field}`" not in page) == []


def names_of(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the fields in an object, or in an array's objects, and in theirs."""
    for name, each in schema.get("items", schema).get("properties", {}).items():
        yield name
        yield from names_of(each)
