"""Addresses of running deployments, in small files that only their user can read."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from macroserve.local.user_folders import state_folder


class NotRunningError(Exception):
    """The deployment is not running on this machine, or a name is needed to select one."""


class NameTakenError(Exception):
    """A deployment of that name already runs on this machine."""


@dataclass(frozen=True, slots=True)
class RunningDeployment:
    """Addresses and tokens of a deployment that runs on this machine."""

    name: str
    pid: int
    endpoint: str
    """Base URL of the OpenAI API."""
    private: str
    """Base URL of metrics and the admin API."""
    admin_token: str = field(repr=False)
    control: str
    """Base URL at which ``up`` accepts orders."""
    control_token: str = field(repr=False)


@contextmanager
def claimed(name: str) -> Iterator[None]:
    """Hold a name while the context lasts, at most until the process ends.

    Raises NameTakenError when another process holds it, OSError if the folder is not writable.
    """
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    # The file stays: removing it could break the lock of another process.
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NameTakenError(
                f"a deployment {name!r} is already running: stop it, or change metadata.name"
            ) from None
        yield
    finally:
        os.close(descriptor)


def log_file(name: str) -> Path:
    """Create an empty log file for a deployment whose name is claimed."""
    path = state_folder() / f"{name}.log"
    path.unlink(missing_ok=True)
    path.touch(0o600)
    return path


def write(deployment: RunningDeployment) -> None:
    """Write the file of a deployment whose name is claimed."""
    path = _path(deployment.name)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(asdict(deployment)))


def remove(name: str) -> None:
    """Remove the file of a deployment whose name is claimed."""
    _path(name).unlink(missing_ok=True)


def find(name: str | None) -> RunningDeployment:
    """Return the running deployment of that name, or the only one. Raises NotRunningError."""
    running = [d for path in sorted(state_folder().glob("*.json")) if (d := _read(path))]
    chosen = [d for d in running if name in (None, d.name)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(d.name for d in chosen)
        raise NotRunningError(f"several deployments are running, select one with --name: {names}")
    wanted = f"no deployment {name!r}" if name else "no deployment"
    raise NotRunningError(f"{wanted} is running on this machine; start one with: macroserve up")


def _path(name: str) -> Path:
    return state_folder() / f"{name}.json"


def _read(path: Path) -> RunningDeployment | None:
    """Read a deployment; return None for the file of an ended process."""
    try:
        deployment = msgspec.json.decode(path.read_bytes(), type=RunningDeployment)
        os.kill(deployment.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return deployment
