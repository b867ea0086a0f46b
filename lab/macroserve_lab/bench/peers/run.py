"""The measurement of deployments, interleaved."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import psutil

from macroserve.bench.serve.client import EndpointError, LoadClient, Target
from macroserve.bench.serve.metrics import Distribution, summarize
from macroserve.core.request import Slo
from macroserve.rehearsal.step_log import MAX_LATE_SHARE
from macroserve_lab.bench.peers.deployments import STEPS, Deployment, Engines
from macroserve_lab.bench.peers.journal import Idle, Journal, Point, PointKey
from macroserve_lab.bench.peers.loads import Load
from macroserve_lab.bench.peers.processes import PeerError, Processes, processes
from macroserve_lab.bench.peers.rehearsed import MIN_IDLE, late_p99
from macroserve_lab.bench.peers.sizes import attainment_by_size
from macroserve_lab.bench.peers.sweep import Sweep, Turn

SETTLE_S = 5.0
"""Seconds after warm-up, before a deployment counts as idle."""
IDLE_S = 15.0
"""Time of the measurement of idle usage: several periods of statuses and health checks."""
TIMEOUT_S = 60.0
"""Time limit of a request, without a rehearsal."""
REHEARSED_TIMEOUT_S = 1800.0
"""The same with one, which stretches times."""
WARM_UP_RATE, WARM_UP_S = 3.0, 6.0
"""Requests per second and seconds of the warm-up."""
PAUSE_S = 2.0
"""Pause between points, for running requests to end."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measurement of the points of a sweep that are missing in the journal."""

    sweep: Sweep
    deployments: Mapping[str, Deployment]
    loads: Mapping[str, Load]
    engines: Engines
    slo: Slo
    duration_s: float
    journal: Journal
    say: Callable[[str], None]
    """Function called with a sentence for each step."""

    @property
    def scale(self) -> float:
        """Return the factor on all times of a rehearsal."""
        return self.engines.rehearsed.scale if self.engines.rehearsed else 1.0

    async def run(self) -> None:
        """Measure the missing points. Raises PeerError if a deployment fails; earlier points are in
        the journal."""
        for turn in self.sweep.turns(self.journal.keys):
            await self._take(turn)

    async def _take(self, turn: Turn) -> None:
        deployment = self.deployments[turn.deployment]
        started_s = time.monotonic()
        self.say(f"round {turn.round + 1}: {turn.deployment} starts")
        with tempfile.TemporaryDirectory(prefix="macroserve-peers-") as folder:
            async with processes(Path(folder)) as running:
                url = await deployment.start(self.engines, running)
                start_s = time.monotonic() - started_s
                timeout_s = REHEARSED_TIMEOUT_S if self.engines.rehearsed else TIMEOUT_S
                async with LoadClient(Target(url, timeout_s)) as client:
                    try:
                        model = await client.find_model(None)
                    except EndpointError as error:
                        raise PeerError(f"{turn.deployment}: {error}") from error
                    await self._warm_up(client, model, turn)
                    if not self._has_idle(turn):
                        self.journal.add(await self._idle(turn, running, start_s))
                    for key in turn.points:
                        await asyncio.sleep(PAUSE_S)
                        point = await self._measure(key, client, model, running)
                        self.journal.add(point)
                        self._say_measured(point)

    async def _warm_up(self, client: LoadClient, model: str, turn: Turn) -> None:
        """Send every load for some seconds. Raises PeerError if a request fails."""
        for name in sorted({point.load for point in turn.points}):
            load = self.loads[name]
            records = await load.run(
                client, model, WARM_UP_RATE / self.scale, WARM_UP_S * self.scale, seed=2**40
            )
            failed = [record for record in records if record.failure is not None]
            if failed:
                raise PeerError(
                    f"{turn.deployment} failed {len(failed)} of {len(records)} first requests of "
                    f"{name}: {failed[0].failure}, {failed[0].detail}"
                )

    def _has_idle(self, turn: Turn) -> bool:
        key = (turn.round, turn.deployment)
        return any((idle.round, idle.deployment) == key for idle in self.journal.idles)

    async def _idle(self, turn: Turn, running: Processes, start_s: float) -> Idle:
        await asyncio.sleep(SETTLE_S)
        before, began_s = running.usage(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        after, took_s = running.usage(), time.monotonic() - began_s
        return Idle(
            turn.round,
            turn.deployment,
            cpu_pct=100 * (after.other_cpu_s - before.other_cpu_s) / took_s,
            engine_cpu_pct=100 * (after.engine_cpu_s - before.engine_cpu_s) / took_s,
            rss_mb=after.other_rss_bytes / 2**20,
            start_s=start_s,
        )

    async def _measure(
        self, key: PointKey, client: LoadClient, model: str, running: Processes
    ) -> Point:
        seed, scale = self.sweep.seed_of(key), self.scale
        psutil.cpu_times_percent()  # begins the interval of the next call
        before, own_s, began_s = running.usage(), time.process_time(), time.monotonic()
        load = self.loads[key.load]
        records = await load.run(client, model, key.rate / scale, self.duration_s * scale, seed)
        ended_s = time.monotonic()
        client_cpu = (time.process_time() - own_s) / (ended_s - began_s)
        idle = psutil.cpu_times_percent().idle / 100
        after = running.usage()
        running.check()
        if after.num_engines != before.num_engines:
            raise PeerError(f"{key.deployment} has lost an engine under {key.load} at {key.rate:g}")
        slo = Slo(self.slo.ttft_s * scale, self.slo.tpot_s * scale)
        summary = summarize(records, slo)
        if not summary.num_succeeded:
            detail = summary.failures[0].detail if summary.failures else "no request arrived"
            raise PeerError(f"{key.deployment} served nothing of {key.load}: {detail}")
        late = None
        if self.engines.rehearsed:
            steps = running.folder / STEPS
            late = await asyncio.to_thread(late_p99, steps, began_s, ended_s)
        return Point(
            *key,
            num_requests=summary.num_sent,
            num_failed=summary.num_failed,
            num_refused=sum(
                each.count
                for each in summary.failures
                if each.http_status == HTTPStatus.TOO_MANY_REQUESTS
            ),
            attainment=summary.attainment or 0.0,
            attainment_by_size=attainment_by_size(records, slo),
            ttft_s=_quantiles(summary.ttft, scale),
            tpot_s=_quantiles(summary.tpot, scale),
            queue_growth=summary.queue_growth,
            tokens_per_s=summary.output_token_throughput * scale,
            cached_share=summary.cached_share,
            cpu_s=after.other_cpu_s - before.other_cpu_s,
            engine_cpu_s=after.engine_cpu_s - before.engine_cpu_s,
            rss_mb=after.other_rss_bytes / 2**20,
            engine_rss_mb=after.engine_rss_bytes / 2**20,
            client_cpu=client_cpu,
            idle=idle,
            late_p99=late,
        )

    def _say_measured(self, point: Point) -> None:
        number = self.sweep.num_done(self.journal.keys)
        self.say(
            f"{number} of {self.sweep.num_points}: {point.deployment}, {point.load} at "
            f"{point.rate:g} req/s: {point.attainment:.1%} within the targets"
        )
        if not point.counts:
            self.say(
                f"This point does not count: P99 of the lateness is {point.late_p99:.1%} of a step "
                f"(at most {MAX_LATE_SHARE:.0%}), and {point.idle:.0%} of the machine is idle "
                f"(at least {MIN_IDLE:.0%})."
            )


def _quantiles(distribution: Distribution | None, scale: float) -> dict[str, float]:
    if distribution is None:
        return {}
    return {name: getattr(distribution, name) / scale for name in ("p50", "p90", "p99", "max")}
