"""Traces follow the Trace Event Format."""

import json
from collections import Counter

import pytest
from support.outcomes import scenario

from macroserve.core.strategies import STRATEGIES
from macroserve.sim.results import AT_END
from macroserve.sim.simulation_trace import INSTANCES, SimulationTrace
from macroserve.workload.arrivals import Arrival

ARRIVALS = [Arrival(0.5 * index, 300 + index, 20) for index in range(12)]


@pytest.fixture
def events(tmp_path):
    traced_scenario = scenario(STRATEGIES["unified"])
    trace = SimulationTrace()
    outcome = traced_scenario.serve(ARRIVALS, stop=AT_END, trace=trace)
    assert outcome == traced_scenario.serve(ARRIVALS, stop=AT_END)
    trace.write(tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_trace_of_a_run_has_a_track_for_each_instance_and_a_slice_for_each_batch(events):
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        assert event["ph"] == "M" or event["ts"] >= 0.0
    threads = {event["tid"] for event in events if event["name"] == "thread_name"}
    batches = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in batches} == {INSTANCES}
    assert {event["tid"] for event in batches} == threads
    prefilled = Counter()
    for batch in batches:
        assert batch["dur"] > 0.0 and batch["args"]["steps"] >= 1
        prefilled.update(batch["args"]["prefills"])
    assert prefilled == {f"request-{index}": 300 + index for index in range(12)}


def test_trace_of_a_run_opens_and_closes_each_async_slice_in_order(events):
    open_slices = {}
    for event in events:
        if event["ph"] not in "be":
            continue
        stack = open_slices.setdefault((event["cat"], event["id"]), [])
        if event["ph"] == "b":
            stack.append(event)
        else:
            begun = stack.pop()
            assert begun["name"] == event["name"] and begun["ts"] <= event["ts"]
    assert not any(open_slices.values())
    assert len([key for key in open_slices if key[0] == "request"]) == len(ARRIVALS)
