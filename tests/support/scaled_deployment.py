"""An autoscaler between reconciles of one MacroInstance, with fake clock and simulations."""

from dataclasses import replace
from datetime import UTC, timedelta

import msgspec
from support.reconcile_results import NOW, cell, manifest, observation, pod

from macroserve.api.messages import Report
from macroserve.core.scaling.autoscale import CapacityEstimate
from macroserve.core.scaling.load import LoadBucket, LoadReport
from macroserve.core.status import InstanceStatus
from macroserve.engine.emulated import EMULATED_MODEL, PREDICTED_DEVICE
from macroserve.operator.k8s.names import Key
from macroserve.operator.plan.autoscaler import Autoscaler, SimulationResult
from macroserve.operator.plan.firing_alerts import HEARTBEAT, Alert, FiringAlerts

LLAMA = Key("team", "llama")
LOW = "MacroserveSLOAttainmentLow"
DOWN_S = 60
AUTOSCALED = manifest(
    autoscaling={
        "minInstances": 2,
        "maxInstances": 8,
        "stabilization": {"down": f"{DOWN_S}s"},
    }
)
COEFFICIENTS = (0.25, 1.25, 0.0, 0.0, 0.001)


def load_of(requests=100, *, num_buckets=60, age_s=0.0, **fields):
    """Return a load with this number of requests in each bucket."""
    buckets = [
        LoadBucket(age_s + 10.0 * i, requests, 200 * requests, 100 * requests)
        for i in range(num_buckets)
    ]
    told = {"coefficients": COEFFICIENTS, "model": EMULATED_MODEL, "device": PREDICTED_DEVICE}
    return LoadReport(10.0, tuple(buckets), ((200, 100),), **{**told, **fields})


def told(report):
    """A cell whose instances have reported their KV cache."""
    status = InstanceStatus(1, num_blocks=1000, block_size=32)
    instances = tuple(msgspec.structs.replace(i, status=status) for i in report.instances)
    return msgspec.structs.replace(report, instances=instances)


def wanted(enough, survivors=None):
    """Return a result of simulations for the current number of instances."""
    return lambda held: CapacityEstimate(20.0, max(enough, held), min(survivors or enough, held))


class Oracle:
    """A fake of simulations; ``answer`` returns the result for the current number of instances."""

    def __init__(self):
        self.answer = lambda held: None
        self.ratio = 0.0
        self.simulate = None
        self.asked = 0
        self.forgotten = 0

    def latest(self, key, simulate):
        assert key == LLAMA
        self.asked += 1
        self.simulate = simulate
        observed, _ = simulate.args
        held = observed.status.get("targetInstances", observed.manifest.spec.instances)
        return SimulationResult(self.answer(held), self.ratio)

    def forget(self, key):
        assert key == LLAMA
        self.forgotten += 1

    async def stop(self):
        pass


class World:
    """Reconciles of one MacroInstance, with its status written as by the operator."""

    def __init__(self, document=AUTOSCALED):
        self.manifest = document
        self.now = NOW
        self.status = {}
        self.ready = 3
        self.report = Report((told(cell("cell-0", 0, 1, 2)),))
        self.load = load_of()
        self.oracle = Oracle()
        self.woken = []
        self.start()
        self.hear()

    def start(self):
        """Start a new autoscaler, like a new process."""
        alerts = FiringAlerts(lambda: self.now.timestamp())
        self.autoscaler = Autoscaler(self.woken.append, alerts, self.oracle)

    def hear(self):
        self.autoscaler.record_alert(Alert(HEARTBEAT, None, True))

    def alert(self, name=LOW, firing=True):
        self.autoscaler.record_alert(Alert(name, LLAMA, firing))

    async def reconcile(self, after_s=5.0, *, heard=True, **differs):
        self.now += timedelta(seconds=after_s)
        if heard:
            self.hear()
        observed = observation(
            now=self.now,
            manifest=self.manifest,
            status=self.status,
            pods=tuple(pod(n) for n in range(self.ready)),
            report=self.report,
        )
        target = self.autoscaler.target(replace(observed, **differs), self.load)
        self.status = {
            **self.status,
            "targetInstances": target.desired_instances,
            "highPriorityRatio": target.high_priority_ratio,
        }
        if target.change:
            entry = {
                "time": target.change.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "from": target.change.from_instances,
                "to": target.change.to_instances,
                "reason": target.change.reason,
            }
            self.status["scalingHistory"] = [*self.status.get("scalingHistory", ()), entry]
        return target
