"""Run Prometheus and Alertmanager for the cluster of KUBECONFIG until Ctrl-C.

This machine must reach the cluster's pods and Services by their addresses.

    python e2e/monitor.py RULES_FILE...
"""

import argparse
import contextlib
import signal
from pathlib import Path

from cluster import GivenCluster
from world.monitoring import monitor
from world.release import NAMESPACE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", type=Path, nargs="+", help="files of recording and alert rules")
    options = parser.parse_args()
    with (
        GivenCluster() as cluster,
        monitor(cluster, options.rules, NAMESPACE) as running,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"Prometheus is at {running.prometheus_url}; Ctrl-C ends it.", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
