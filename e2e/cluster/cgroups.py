"""A cgroup for each node, in every hierarchy that the machine has (cgroup version 1)."""

from pathlib import Path

from cluster.errors import ClusterError

_PARENT = "macroserve-e2e"


def path(node: str) -> str:
    """From the hierarchies' roots, as the kubelet names it."""
    return f"/{_PARENT}/{node}"


def create(node: str) -> None:
    for hierarchy in _hierarchies():
        for group in (hierarchy / _PARENT, hierarchy / _PARENT / node):
            group.mkdir(exist_ok=True)
            # A cpuset takes no process before it has these, and does not inherit them.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists():
                    (group / name).write_text((group.parent / name).read_text())


def remove() -> None:
    """All groups of all nodes; their processes must have ended."""
    for hierarchy in _hierarchies():
        _remove(hierarchy / _PARENT)


def _remove(group: Path) -> None:
    if group.exists():
        for child in group.iterdir():
            if child.is_dir():
                _remove(child)
        group.rmdir()


def _hierarchies() -> list[Path]:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    found = [Path(target) for _, target, kind, *_ in mounts if kind == "cgroup"]
    if not any(hierarchy.name == "memory" for hierarchy in found):
        raise ClusterError("the nodes need cgroup version 1 hierarchies, which this machine lacks")
    return found
