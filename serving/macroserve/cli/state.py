"""Where a running deployment on this machine is: a small file that only its user can read."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec


class NotRunningError(Exception):
    """There is no such deployment on this machine, or there are several."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """endpoint: the OpenAI API. private: metrics and the admin API. control: where ``up`` takes
    orders. Both tokens are secrets."""

    name: str
    pid: int
    endpoint: str
    private: str
    admin_token: str = field(repr=False)
    control: str
    control_token: str = field(repr=False)


def _folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "macroserve"


def write(deployment: Deployment) -> None:
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{deployment.name}.json"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(asdict(deployment)))


def remove(name: str) -> None:
    (_folder() / f"{name}.json").unlink(missing_ok=True)


def find(name: str | None) -> Deployment:
    """The running deployment of that name, or the only one; raises NotRunningError."""
    running = [d for path in sorted(_folder().glob("*.json")) if (d := _read(path))]
    chosen = [d for d in running if name in (None, d.name)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        names = ", ".join(d.name for d in chosen)
        raise NotRunningError(f"several deployments run here, name one with --name: {names}")
    wanted = f"no deployment {name!r}" if name else "no deployment"
    raise NotRunningError(f"{wanted} runs on this machine; start one with: macroserve up")


def _read(path: Path) -> Deployment | None:
    """None for a file that its process left behind."""
    try:
        deployment = msgspec.json.decode(path.read_bytes(), type=Deployment)
        os.kill(deployment.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return deployment
