"""A cell scheduler as Ray Serve runs it: a process that is started again when it ends."""

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


@serve.deployment(
    num_replicas=1,
    health_check_period_s=HEALTH_CHECK_S,
    health_check_timeout_s=5,
    graceful_shutdown_timeout_s=5,
    ray_actor_options={"num_cpus": 0},
)
class CellDeployment:
    async def __init__(
        self,
        name: str,
        strategy_name: str,
        slo: Slo,
        keys: KeySource,
        host: str,
        ports: range,
        discovery: InstanceDiscovery,
    ) -> None:
        logs.configure()
        try:
            live = LiveKeys(keys)
            self._scheduler = CellScheduler(name, strategy(strategy_name), slo, live)
            self._server = CellServer(self._scheduler, live, host, cell_ports(name, ports))
            await self._scheduler.start(await discovery.find())
            announce(name, await self._server.start())
        except Exception as error:
            raise RuntimeError(cause_of(error)) from None

    def check_health(self) -> None:
        self._server.check()

    async def __del__(self) -> None:
        await self._server.stop()
        await self._scheduler.stop()
