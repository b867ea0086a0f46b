"""Measure how soon a serving cell of six splits, and whether streams are disturbed. The cluster is
that of KUBECONFIG, with the chart installed.

    python e2e/bench_split.py --json FILE
"""

import argparse
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from cluster import GivenCluster
from world.kube import Kube
from world.served import Served, emulated
from world.traffic import Traffic
from world.waiting import eventually

from macroserve_lab.bench.figures import report

NAMESPACE = "bench-split"
ROUNDS = 5
MOVED = 3
REQUESTS_PER_S = 20.0
POD_AND_CELL = r"""jsonpath={.metadata.name} {.metadata.labels.macroserve\.io/cell}{"\n"}"""


class Moves:
    """Times at which pods, by name, changed their cell, on the clock ``time.perf_counter``."""

    def __init__(self, cluster: GivenCluster) -> None:
        self.seen: dict[str, float] = {}
        watch = ("-n", NAMESPACE, "get", "pods", "--watch", "-o", POD_AND_CELL)
        self._process = subprocess.Popen(
            [*cluster.kubectl_command, *watch], stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Moves":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._thread.join()

    def _watch(self) -> None:
        cells: dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            pod, _, cell = line.strip().partition(" ")
            if cells.setdefault(pod, cell) != cell:
                self.seen[pod] = time.perf_counter()
            cells[pod] = cell


@contextmanager
def six_instances(cluster: GivenCluster) -> Iterator[Served]:
    cluster.kubectl("create", "namespace", NAMESPACE)
    try:
        served = Served(Kube(cluster, NAMESPACE), emulated("llama", instances=6))
        served.apply()
        served.wait_for_instances(6)
        yield served
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE)


def measure(cluster: GivenCluster) -> dict[str, float]:
    moving_s: list[float] = []
    asked_s: list[float] = []
    with (
        six_instances(cluster) as served,
        Moves(cluster) as moves,
        Traffic(served.endpoint, rate=REQUESTS_PER_S) as traffic,
    ):
        traffic.after(20)
        for _ in range(ROUNDS):
            moves.seen.clear()
            asked = time.perf_counter()
            served.scale(7)
            eventually(lambda: len(moves.seen) == MOVED, 30, describe=served.describe)
            seen = sorted(moves.seen.values())
            moving_s.append(seen[-1] - seen[0])
            asked_s.append(seen[-1] - asked)
            served.wait_for_instances(7)
            served.scale(6)
            served.wait_for_instances(6)
    return {
        "split.moving_p50_s": median(moving_s),
        "split.moving_max_s": max(moving_s),
        "split.asked_to_moved_p50_s": median(asked_s),
        "split.asked_to_moved_max_s": max(asked_s),
        "split.requests": traffic.complete,
        "split.failed_requests": len(traffic.failures),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    with GivenCluster() as cluster:
        figures = measure(cluster)
    report(figures, options.json)


if __name__ == "__main__":
    main()
