"""The background process of a cluster for interactive use.

All processes of the cluster end with the keeper, even if it is killed. The keeper locks the file
that describes it, so that the file of a dead keeper is recognized.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from cluster import node_cluster, places
from cluster.api_cluster import ApiCluster
from cluster.errors import ClusterError
from cluster.node_cluster import NodeCluster
from cluster.steps import Steps

_STOP_S = 30.0
TIERS = {"api": ApiCluster, "nodes": NodeCluster}


@dataclass(frozen=True)
class Kept:
    """The content of the keeper's file, which describes its cluster."""

    pid: int
    directory: str
    """Folder of the cluster's files; empty during the start."""


def start(tier: str, images: Sequence[Path] = ()) -> None:
    """Start a cluster and print the steps. Raises ClusterError if the start fails.

    images: archives for every node.
    """
    if _is_running():
        raise ClusterError("a cluster is up already; `python -m cluster down` ends it")
    stop()
    keeper = subprocess.Popen(
        [sys.executable, "-m", "cluster", "keep", tier, *_options(images)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert keeper.stdout is not None
    with keeper.stdout as told:
        try:
            for line in told:
                print(line, end="", flush=True)
        except KeyboardInterrupt:
            keeper.terminate()
            raise
    if not _is_running():
        raise ClusterError("the cluster did not come up")


def keep(tier: str, images: Sequence[Path] = ()) -> None:
    """Run as the keeper until SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)
    with _file().open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _tell(file, "")
        with TIERS[tier](steps=Steps()) as cluster:
            _tell(file, str(cluster.directory))
            for archive in images:
                cluster.import_image(archive)
            print(f"export KUBECONFIG={cluster.kubeconfig} PATH={cluster.binaries}:$PATH")
            _end_output()
            signal.pause()


def stop() -> None:
    """Stop the kept cluster, if any, and remove the remains of one."""
    if _is_running():
        _end(_read().pid)
    if _file().exists():
        if directory := _read().directory:
            shutil.rmtree(directory, ignore_errors=True)
        _file().unlink()
    if os.geteuid() == 0:
        node_cluster.remove_remains()


def _options(images: Sequence[Path]) -> list[str]:
    return [f"--image={archive.absolute()}" for archive in images]


def _read() -> Kept:
    return Kept(**json.loads(_file().read_text()))


def _tell(file: TextIO, directory: str) -> None:
    file.truncate(0)
    json.dump(asdict(Kept(os.getpid(), directory)), file)
    file.flush()


def _is_running() -> bool:
    try:
        with _file().open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _end(pid: int) -> None:
    """End a process, and wait for that."""
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    if not select.select([process], [], [], _STOP_S)[0]:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [])
    os.close(process)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # stopping takes a while
    raise SystemExit


def _end_output() -> None:
    """Close the output, so that its reader sees the end."""
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _file() -> Path:
    return places.cache() / "kept.json"
