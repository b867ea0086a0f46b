"""Trace of a simulation for Perfetto and chrome://tracing.

Format: Chrome trace events, as a JSON object ("Trace Event Format", sections "Duration Events" and
"Async Events"). Each instance is a thread, each batch a slice of it; each request is an async slice
with its phases nested in it. Times are in microseconds.
"""

import json
from pathlib import Path
from typing import Any

from macroserve.sim.device import SimRequest
from macroserve.sim.instance import StepOutcome

INSTANCES, REQUESTS = 1, 2
"""Process ids; each is a group of tracks."""


class SimulationTrace:
    """Events collected while a simulation runs."""

    def __init__(self) -> None:
        self._threads: dict[str, int] = {}
        self._events: list[dict[str, Any]] = []
        names = {INSTANCES: "instances", REQUESTS: "requests"}
        for process, name in names.items():
            self._name("process_name", process, 0, name)

    def stepped(self, instance: str, outcome: StepOutcome) -> None:
        """Record the steps of a batch and the requests that ended with them."""
        batch = outcome.batch
        self._events.append(
            {
                "ph": "X",
                "name": batch.kind.name.lower(),
                "cat": "batch",
                "pid": INSTANCES,
                "tid": self._thread(instance),
                "ts": 1e6 * outcome.start_s,
                "dur": 1e6 * (outcome.end_s - outcome.start_s),
                "args": {
                    "steps": outcome.num_steps,
                    "prefills": {each.request_id: each.num_tokens for each in batch.prefills},
                    "decodes": len(batch.decodes),
                },
            }
        )
        for request in outcome.finished:
            self._ended(request, instance)

    def refused(self, request: SimRequest, now: float) -> None:
        known = request.request
        args = {"prompt tokens": known.num_prompt_tokens}
        self._span(REQUESTS, "request", known.request_id, "refused", known.arrival_s, now, args)

    def write(self, path: Path) -> None:
        document = {"traceEvents": self._events, "displayTimeUnit": "ms"}
        path.write_text(json.dumps(document, separators=(",", ":")))

    def _ended(self, request: SimRequest, instance: str) -> None:
        known = request.request
        name, arrival_s = known.request_id, known.arrival_s
        args = {
            "prompt tokens": known.num_prompt_tokens,
            "output tokens": request.num_emitted,
            "instance": instance,
        }
        # Viewers nest async slices of one id by their order.
        self._async("b", REQUESTS, "request", name, name, arrival_s, args)
        self._span(REQUESTS, "request", name, "first token", arrival_s, request.first_s, {})
        if request.last_s > request.first_s:
            self._span(REQUESTS, "request", name, "decode", request.first_s, request.last_s, {})
        self._async("e", REQUESTS, "request", name, name, request.last_s, {})

    def _thread(self, instance: str) -> int:
        if instance not in self._threads:
            self._threads[instance] = len(self._threads) + 1
            self._name("thread_name", INSTANCES, self._threads[instance], instance)
        return self._threads[instance]

    def _name(self, kind: str, process: int, thread: int, name: str) -> None:
        self._events.append(
            {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
        )

    def _span(
        self,
        process: int,
        category: str,
        name_id: str,
        name: str,
        start_s: float,
        end_s: float,
        args: dict[str, Any],
    ) -> None:
        self._async("b", process, category, name_id, name, start_s, args)
        self._async("e", process, category, name_id, name, end_s, {})

    def _async(
        self,
        phase: str,
        process: int,
        category: str,
        name_id: str,
        name: str,
        at_s: float,
        args: dict[str, Any],
    ) -> None:
        self._events.append(
            {
                "ph": phase,
                "cat": category,
                "id": name_id,
                "name": name,
                "pid": process,
                "tid": 0,
                "ts": 1e6 * at_s,
                "args": args,
            }
        )
