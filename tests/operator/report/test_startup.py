"""A pod's start is measured once, and the measures stay in the status."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import crd
from support.reconcile_results import NOW, cell, observation, pod, reconcile_result

from macroserve.api.messages import InstanceReport, Report
from macroserve.core.instance_start import InstanceStart
from macroserve.operator.observe.observation import InstancePod, Observation
from macroserve.operator.report.startup import MAX_STARTS, startup
from macroserve.operator.report.status import status

COLD = InstanceStart(total_s=90.4, load_s=70.2, warm_up_s=8.1, warm=False)
WARM = InstanceStart(total_s=20.0, load_s=10.0, warm_up_s=5.0, warm=True)


def started(number: int, setup_s: float | None = 4.0, **differs: Any) -> InstancePod:
    created = NOW + timedelta(minutes=number)
    usual = {"uid": f"uid-{number}", "created": created, "setup_s": setup_s}
    return pod(number, **{**usual, **differs})


def seen(
    starts: Mapping[InstancePod, InstanceStart | None], before: dict[str, Any] | None = None
) -> Observation:
    """Return an observation of these pods, whose instances report these starts."""
    numbers = [int(each.instance.removeprefix("instance-")) for each in starts]
    reported = cell("cell-0", *numbers)
    instances: list[InstanceReport] = [
        msgspec.structs.replace(instance, start=start)
        for instance, start in zip(reported.instances, starts.values(), strict=True)
    ]
    report = Report((msgspec.structs.replace(reported, instances=tuple(instances)),))
    kept = {"startup": before} if before else {}
    return observation(pods=tuple(starts), report=report, status=kept)


def test_starts_are_told_by_percentiles_and_one_by_one() -> None:
    found = startup(seen({started(0): COLD, started(1, 2.0): WARM, started(2, 3.0): WARM}))
    assert found is not None
    starts = found.pop("starts")
    assert found == {
        "p50Seconds": 23,
        "p90Seconds": 94,
        "samples": 3,
        "cold": {"p50Seconds": 94, "p90Seconds": 94, "samples": 1},
        "warm": {"p50Seconds": 22, "p90Seconds": 23, "samples": 2},
    }
    assert [entry["pod"] for entry in starts] == ["uid-0", "uid-1", "uid-2"]
    assert starts[0] == {
        "pod": "uid-0",
        "instance": "instance-0",
        "created": "2026-03-01T12:00:00Z",
        "seconds": 94,
        "setupSeconds": 4,
        "loadSeconds": 70,
        "warmUpSeconds": 8,
        "warm": False,
    }


def test_status_with_starts_is_what_the_crd_has() -> None:
    found = status(reconcile_result(seen({started(0): COLD, started(1): WARM})), ())["startup"]
    for part, shown in (("", found), (".cold", found["cold"]), (".warm", found["warm"])):
        assert set(crd.fields_at(f"status.startup{part}")["properties"]) == set(shown)
    (entries, first) = crd.at("status.startup.starts"), found["starts"][0]
    assert set(entries["items"]["properties"]) == set(entries["items"]["required"]) == set(first)
    assert entries["maxItems"] == MAX_STARTS


def test_status_before_the_first_start_has_no_startup() -> None:
    assert "startup" not in status(reconcile_result(), ())


NOT_MEASURED = {
    "not ready": (started(0, ready=False), WARM),
    "container not running, or restarted": (started(0, setup_s=None), WARM),
    "creation unknown": (started(0, created=None), WARM),
    "report of an earlier pod of the name": (started(0, address="10.0.0.9"), WARM),
    "instance of a version that measures nothing": (started(0), None),
}


@pytest.mark.parametrize("case", NOT_MEASURED)
def test_pod_without_both_halves_is_not_measured(case: str) -> None:
    found, start = NOT_MEASURED[case]
    assert startup(seen({found: start})) is None


def test_pod_is_measured_while_the_head_answers() -> None:
    silent = observation(pods=(started(0),), report=None)
    assert startup(silent) is None


def test_equal_reconciles_give_equal_startup() -> None:
    pods = {started(0): COLD, started(1): WARM}
    first = startup(seen(pods))
    assert startup(seen(pods, first)) == first
    assert startup(observation(pods=(), report=None, status={"startup": first})) == first


def test_pod_that_is_measured_keeps_its_measure() -> None:
    first = startup(seen({started(0): COLD}))
    assert startup(seen({started(0): WARM}, first)) == first


@given(st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=41), st.integers(1, 10))
def test_newest_pods_are_kept_in_any_order_of_reconciles(numbers: list[int], at_once: int) -> None:
    found = None
    for first in range(0, len(numbers), at_once):
        part = numbers[first : first + at_once]
        found = startup(seen({started(number): WARM for number in part}, found))
        # Older pods that are still there do not come back.
        found = startup(seen({started(number): COLD for number in numbers[: first + 1]}, found))
    assert found is not None
    newest = sorted(numbers)[-MAX_STARTS:]
    assert [entry["pod"] for entry in found["starts"]] == [f"uid-{n}" for n in newest]
    assert found["samples"] == len(newest)


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=MAX_STARTS))
def test_percentiles_are_values_that_enough_starts_do_not_exceed(totals: list[float]) -> None:
    starts = {
        started(number): InstanceStart(total, 0.0, 0.0, True) for number, total in enumerate(totals)
    }
    found = startup(seen(starts))
    assert found is not None
    seconds = [entry["seconds"] for entry in found["starts"]]
    for name, share in (("p50Seconds", 0.5), ("p90Seconds", 0.9)):
        assert found[name] in seconds
        assert sum(value <= found[name] for value in seconds) >= share * len(seconds)
        assert sum(value < found[name] for value in seconds) < share * len(seconds)
