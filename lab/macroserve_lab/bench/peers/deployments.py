"""The compared deployments, with the same engines."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from macroserve.engine.rehearsal import BLOCK_TOKENS
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import DEFAULTS
from macroserve_lab.bench.peers.environment import PeersEnvironment
from macroserve_lab.bench.peers.processes import Processes, json_of
from macroserve_lab.bench.peers.rehearsed import Rehearsed
from macroserve_lab.bench.ports import free_port
from macroserve_lab.bench.stock_vllm import api_server, engine_flags
from macroserve_lab.bench.up_log import num_serving

ROUTER_POLICIES = (
    "cache_aware",
    "kv_aware",
    "power_of_two",
    "round_robin",
    "consistent_hash",
    "sticky_least_loaded",
    "random",
)
DYNAMO_MODES = ("kv", "least-loaded", "power-of-two", "round-robin", "random")
STEPS = "steps"
"""Folder of the logs of rehearsed steps."""
WORKER = Path(__file__).with_name("dynamo_worker.py")


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of every deployment."""

    settings: EngineSettings
    count: int
    threads: int
    """Compute threads of each engine, as by ``macroserve up``."""
    is_split: bool = False
    """Whether stock engines have two processes each, the default on a CPU: they wait for each other
    in busy loops and take about twice the CPU. Macroserve's engines have one process."""
    rehearsed: Rehearsed | None = None

    def environment(self, processes: Processes, **variables: str) -> dict[str, str]:
        """Return the environment of stock engines."""
        return {
            **os.environ,
            **DEFAULTS,
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(self.is_split)),
            "OMP_NUM_THREADS": str(self.threads),
            **self.rehearsal(processes),
            **variables,
        }

    def rehearsal(self, processes: Processes) -> dict[str, str]:
        """Return the variables of engines that rehearse."""
        if self.rehearsed is None:
            return {}
        return self.rehearsed.environment(processes.folder / STEPS)

    @property
    def block_size(self) -> int:
        """Return the tokens of a cache block."""
        return BLOCK_TOKENS if self.rehearsed else self.settings.small.block_size


class Deployment(Protocol):
    """A deployment of one model on some engines behind one OpenAI endpoint."""

    @property
    def name(self) -> str:
        """Return the name, as in the keys of figures."""
        ...

    async def start(self, engines: Engines, processes: Processes) -> str:
        """Start everything; return the URL of the endpoint when all engines serve. Raises PeerError
        if that fails."""
        ...


@dataclass(frozen=True, slots=True)
class VllmRouter:
    """Stock vLLM API servers behind vLLM's router, ``vllm-router``."""

    peers: PeersEnvironment
    policy: str

    @property
    def name(self) -> str:
        return f"vllm_router_{self.policy}"

    async def start(self, engines: Engines, processes: Processes) -> str:
        ports = [free_port() for _ in range(engines.count)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        events = [_KvEvents() for _ in ports] if self.policy == "kv_aware" else []
        for index, port in enumerate(ports):
            flags = events[index].flags if events else ()
            processes.start(
                f"vllm-{index}",
                (*api_server(engines.settings, port), *flags),
                engines.environment(processes),
            )
        for url in urls:
            await processes.answers(url + "/health")
        port = free_port()
        sources = [
            part
            for url, event in zip(urls, events, strict=False)
            for part in ("--kv-event-source", f"{url}=tcp://127.0.0.1:{event.port}")
        ]
        processes.start(
            "vllm-router",
            (
                *(str(self.peers.router), "--policy", self.policy, "--worker-urls", *urls),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--prometheus-port", str(free_port()), "--log-level", "warning"),
                *(sources and ("--kv-event-block-size", str(engines.block_size))),
                *(sources and ("--kv-event-model", engines.settings.served_name)),
                *sources,
            ),
            os.environ,
        )
        endpoint = f"http://127.0.0.1:{port}"
        await processes.answers(endpoint + "/v1/models")
        return endpoint


@dataclass(frozen=True, slots=True)
class Dynamo:
    """Dynamo's vLLM workers behind its routing frontend, with discovery by files and communication
    over TCP and ZeroMQ."""

    peers: PeersEnvironment
    mode: str

    @property
    def name(self) -> str:
        return f"dynamo_{self.mode.replace('-', '_')}"

    async def start(self, engines: Engines, processes: Processes) -> str:
        variables = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(processes.folder / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
            "DYN_LOG": "warn",
        }
        for index in range(engines.count):
            processes.start(
                f"dynamo-vllm-{index}",
                (
                    *(sys.executable, str(WORKER), str(self.peers.site)),
                    *engine_flags(engines.settings),
                    *_KvEvents().flags,
                ),
                engines.environment(processes, **variables),
            )
        port = free_port()
        processes.start(
            "dynamo-frontend",
            (
                *(str(self.peers.python), "-m", "dynamo.frontend"),
                *("--http-host", "127.0.0.1", "--http-port", str(port)),
                *("--router-mode", self.mode),
                *("--kv-cache-block-size", str(engines.block_size)),
            ),
            {**os.environ, **variables},
        )
        endpoint = f"http://127.0.0.1:{port}"

        async def all_serve() -> bool:
            return _num_workers(await json_of(endpoint + "/health")) == engines.count

        await processes.until("every worker of Dynamo", all_serve)
        await processes.answers(endpoint + "/v1/models")
        return endpoint


@dataclass(frozen=True, slots=True)
class MacroserveUp:
    """``macroserve up`` with instances of one pool."""

    name: str = "macroserve"
    strategy: str = "unified"

    async def start(self, engines: Engines, processes: Processes) -> str:
        port = free_port()
        path = processes.folder / "manifest.json"
        manifest = json.dumps(macroserve_manifest(engines, self.strategy))
        await asyncio.to_thread(path.write_text, manifest)
        processes.start(
            "macroserve",
            (
                *(sys.executable, "-c", "from macroserve.cli.entry import main; main()"),
                *("up", "-f", str(path), "--port", str(port)),
            ),
            {
                **os.environ,
                **engines.rehearsal(processes),
                "XDG_STATE_HOME": str(processes.folder),
            },
        )
        endpoint = f"http://127.0.0.1:{port}"

        async def all_serve() -> bool:
            log = processes.folder / "macroserve.log"
            return await asyncio.to_thread(num_serving, log) >= engines.count

        await processes.answers(endpoint + "/ready")
        await processes.until("every instance of Macroserve", all_serve)
        return endpoint


def macroserve_manifest(engines: Engines, strategy: str) -> dict[str, object]:
    """Return the deployment's manifest: the quickstart's, with one ingress, as the others have one
    router, and defaults otherwise."""
    settings = engines.settings
    return {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": "peers"},
        "spec": {
            "model": {
                "source": settings.model,
                "servedName": settings.served_name,
                "maxModelLen": settings.max_model_len,
            },
            "engine": _engine(settings),
            "slo": {
                "ttft": f"{settings.slo.ttft_s * 1e3:.0f}ms",
                "tpot": f"{settings.slo.tpot_s * 1e3:.0f}ms",
                "attainment": 0.9,
            },
            "instances": engines.count,
            "ingress": {"replicas": 1},
            "mitosis": {"lowerBound": 2, "upperBound": max(4, engines.count)},
            "priority": {"highPriorityRatio": 0},
            "scheduling": {"strategy": strategy},
        },
    }


def _engine(settings: EngineSettings) -> dict[str, object]:
    named = {"type": "vLLM", "dtype": settings.dtype}
    if settings.rehearse:
        parallel = settings.tensor_parallel
        return {**named, "rehearse": settings.rehearse, "tensorParallel": parallel}
    return {
        **named,
        "blockSize": settings.small.block_size,
        "kvCacheMemory": f"{settings.small_cache_bytes >> 20}MiB",
        "maxBatchTokens": settings.small.max_batch_tokens,
    }


@dataclass(frozen=True, slots=True)
class _KvEvents:
    """An engine's events of its prefix cache, published on a separate port."""

    port: int = field(default_factory=free_port)

    @property
    def flags(self) -> tuple[str, str]:
        config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.port}",
        }
        return "--kv-events-config", json.dumps(config)


def _num_workers(health: object) -> int:
    """Return the number of ready workers in the answer of Dynamo's frontend at ``/health``."""
    if not isinstance(health, Mapping):
        return 0
    instances = health.get("instances")
    if not isinstance(instances, list):
        return 0
    return sum(
        isinstance(each, Mapping) and each.get("endpoint") == "generate" for each in instances
    )


def deployments(peers: PeersEnvironment) -> dict[str, Deployment]:
    """Return every deployment by its name."""
    found: list[Deployment] = [
        MacroserveUp(),
        MacroserveUp("macroserve_vllm", "vllm"),
        *(VllmRouter(peers, policy) for policy in ROUTER_POLICIES),
        *(Dynamo(peers, mode) for mode in DYNAMO_MODES),
    ]
    return {deployment.name: deployment for deployment in found}
