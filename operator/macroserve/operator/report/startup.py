"""``status.startup``: times from the creation of pods until their instances serve.

Each pod is measured once: the time until its container ran, from the pod's status, and the time
    until it could serve, from the instance's report. A pod that is Ready again after a failed probe
    gives the same numbers. The measurements are in the status, so they outlive the operator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from macroserve.core.instance_start import InstanceStart
from macroserve.operator.k8s.times import rfc3339
from macroserve.operator.observe.observation import InstancePod, Observation

MAX_STARTS = 16
"""Number of newest pods whose starts are kept: several scale-ups, so that none dominates."""


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """Start of one pod, in whole seconds."""

    pod: str
    """UID of the pod."""
    instance: str
    created: datetime
    seconds: int
    """Time from the creation of the pod until the instance could serve."""
    setup_s: int
    """Part until the engine's container ran."""
    load_s: int
    """Part in which the engine fetched and loaded weights and compiled code."""
    warm_up_s: int
    """Part in which the engine generated its first tokens."""
    warm: bool
    """Whether caches had the weights and the code."""

    @staticmethod
    def of(
        pod: InstancePod, created: datetime, setup_s: float, own: InstanceStart
    ) -> "MeasuredStart":
        return MeasuredStart(
            pod=pod.uid,
            instance=pod.instance,
            created=created,
            seconds=round(setup_s + own.total_s),
            setup_s=round(setup_s),
            load_s=round(own.load_s),
            warm_up_s=round(own.warm_up_s),
            warm=own.warm,
        )

    @staticmethod
    def from_status(entry: Mapping[str, Any]) -> "MeasuredStart":
        return MeasuredStart(
            entry["pod"],
            entry["instance"],
            datetime.fromisoformat(entry["created"]),
            entry["seconds"],
            entry["setupSeconds"],
            entry["loadSeconds"],
            entry["warmUpSeconds"],
            entry["warm"],
        )

    def to_status(self) -> dict[str, Any]:
        return {
            "pod": self.pod,
            "instance": self.instance,
            "created": rfc3339(self.created),
            "seconds": self.seconds,
            "setupSeconds": self.setup_s,
            "loadSeconds": self.load_s,
            "warmUpSeconds": self.warm_up_s,
            "warm": self.warm,
        }


def startup(observation: Observation) -> dict[str, Any] | None:
    """Return the measurements after examining this reconcile's pods, or None before the first."""
    starts = _kept(observation)
    if not starts:
        return None
    summaries = {
        "cold": _summary([start for start in starts if not start.warm]),
        "warm": _summary([start for start in starts if start.warm]),
    }
    return {
        **_summary(starts),
        **{kind: summary for kind, summary in summaries.items() if summary["samples"]},
        "starts": [start.to_status() for start in starts],
    }


def _kept(observation: Observation) -> list[MeasuredStart]:
    """Return the starts of the newest pods, the newest last.

    Sorted by the pods' age, so that a dropped measurement does not come back.
    """
    known = observation.status.get("startup", {}).get("starts", ())
    starts = {start.pod: start for start in map(MeasuredStart.from_status, known)}
    starts = {start.pod: start for start in _measured(observation)} | starts
    by_age = sorted(starts.values(), key=lambda start: (start.created, start.pod))
    return by_age[-MAX_STARTS:]


def _measured(observation: Observation) -> Iterator[MeasuredStart]:
    for pod in observation.pods:
        located = observation.located(pod.instance)
        if not located or not pod.ready or pod.created is None or pod.setup_s is None:
            continue
        _, report = located
        # Ignore the report of an earlier pod with the same name.
        if report.start and urlsplit(report.address).hostname == pod.address:
            yield MeasuredStart.of(pod, pod.created, pod.setup_s, report.start)


def _summary(starts: Sequence[MeasuredStart]) -> dict[str, int]:
    if not starts:
        return {"samples": 0}
    ordered = sorted(start.seconds for start in starts)
    return {
        "p50Seconds": _percentile(ordered, 0.5),
        "p90Seconds": _percentile(ordered, 0.9),
        "samples": len(ordered),
    }


def _percentile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest value that at least that share of all values do not exceed."""
    return ordered[ceil(share * len(ordered)) - 1]
