"""A cell scheduler as a Ray Serve deployment, which is restarted when it fails."""

from dataclasses import dataclass

from ray import serve

from macroserve.core.request import Slo
from macroserve.core.strategies import strategy
from macroserve.serving import logs
from macroserve.serving.causes import cause_of
from macroserve.serving.cell.scheduler import CellScheduler
from macroserve.serving.cell.server import CellServer, cell_ports
from macroserve.serving.discovery import InstanceDiscovery
from macroserve.serving.ray.registry import announce
from macroserve.serving.security.key_source import KeySource, LiveKeys

HEALTH_CHECK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOptions:
    """The options of all cell schedulers of a deployment."""

    strategy: str
    slo: Slo
    discovery: InstanceDiscovery
    """Finds the instances of a restarted scheduler."""
    keys: KeySource
    host: str = "127.0.0.1"
    ports: range = range(1)
    """Ports that they may listen on; 0 means any."""


@serve.deployment(
    num_replicas=1,
    health_check_period_s=HEALTH_CHECK_S,
    health_check_timeout_s=5,
    graceful_shutdown_timeout_s=5,
    ray_actor_options={"num_cpus": 0},
)
class CellDeployment:
    async def __init__(self, name: str, options: CellOptions) -> None:
        logs.configure()
        try:
            keys = LiveKeys(options.keys)
            self._scheduler = CellScheduler(name, strategy(options.strategy), options.slo, keys)
            ports = cell_ports(name, options.ports)
            self._server = CellServer(self._scheduler, keys, options.host, ports)
            await self._scheduler.start(await options.discovery.find())
            announce(name, await self._server.start())
        except Exception as error:
            raise RuntimeError(cause_of(error)) from None

    def check_health(self) -> None:
        self._server.check()

    async def __del__(self) -> None:
        await self._server.stop()
        await self._scheduler.stop()
