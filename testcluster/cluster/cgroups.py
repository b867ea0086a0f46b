"""A cgroup for each node, in every hierarchy of the machine (cgroup version 1)."""

from pathlib import Path

from cluster.errors import ClusterError
from cluster.processes import wait_until

_PARENT = "macroserve-e2e"
_END_S = 15.0


def path(node: str) -> str:
    """Return the node's path below the roots of the hierarchies, in the kubelet's form."""
    return f"/{_PARENT}/{node}"


def create(node: str) -> None:
    for hierarchy in _hierarchies():
        for group in (hierarchy / _PARENT, hierarchy / _PARENT / node):
            group.mkdir(exist_ok=True)
            # A cpuset accepts no process without these values, which are not inherited.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists():
                    (group / name).write_text((group.parent / name).read_text())


def processes(name: str) -> list[int]:
    """Return the processes in all groups of this name and below, on any node."""
    (memory,) = (found for found in _hierarchies() if found.name == "memory")
    groups = [group for group in (memory / _PARENT).rglob(name) if group.is_dir()]
    files = [file for group in groups for file in group.rglob("cgroup.procs")]
    return [int(pid) for file in files for pid in file.read_text().split()]


def remove() -> None:
    """Remove all groups of all nodes. Their processes must have ended."""
    # A container's runtime also leaves groups in the hierarchy of version 2.
    for hierarchy in (*_hierarchies(), *_mounted("cgroup2")):
        wait_until(
            lambda at=hierarchy: _is_removed(at / _PARENT), f"{hierarchy} is left by all", _END_S
        )


def _is_removed(group: Path) -> bool:
    """Return whether the group could be removed; a killed process blocks that for a moment."""
    if not group.exists():
        return True
    children = [child for child in group.iterdir() if child.is_dir()]
    if not all(_is_removed(child) for child in children):
        return False
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _mounted(kind: str) -> list[Path]:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(target) for _, target, found, *_ in mounts if found == kind]


def _hierarchies() -> list[Path]:
    found = _mounted("cgroup")
    if not any(hierarchy.name == "memory" for hierarchy in found):
        raise ClusterError("the nodes need cgroup version 1 hierarchies, which this machine lacks")
    return found
