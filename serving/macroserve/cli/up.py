"""``macroserve up``: a whole deployment on this machine, from one manifest, until Ctrl-C."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.markup import escape

from macroserve.cli import state
from macroserve.cli.control import ControlServer
from macroserve.cli.first_request import first_request
from macroserve.cli.manifest_file import (
    Saved,
    chat_template,
    engine_settings,
    loads,
    model_folder,
    read,
)
from macroserve.cli.manifest_watch import saves
from macroserve.core.manifest import Manifest, ManifestError, changes
from macroserve.core.scaling.fleet import Wish
from macroserve.core.wish import wish
from macroserve.engine.settings import EngineSettings
from macroserve.serving.admin_client import AdminClient
from macroserve.serving.api_keys import ApiKeySource
from macroserve.serving.auth import new_secret
from macroserve.serving.ingress import IngressOptions
from macroserve.serving.ray_cluster import ClusterOptions, RayCluster
from macroserve.serving.reconcile import Reconciler, StartError

PRIVATE_HOST = "127.0.0.1"
READY_TIMEOUT_S = 1800.0
"""Large checkpoints take their time to load."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    path: Path
    host: str
    port: int
    private_port: int | None
    api_keys: ApiKeySource | None


class PortTakenError(Exception):
    """Something listens there already."""


class Progress:
    """A line a step, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def step(self, text: str) -> None:
        elapsed = time.monotonic() - self._start
        line = f"[dim]{elapsed:7.1f}s[/dim]  {text}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """text: from elsewhere, so that brackets in it are no markup."""
        self.step(escape(text))

    def problem(self, text: str) -> None:
        self.step(f"[red]{escape(text)}[/red]")


def run(options: UpOptions, console: Console) -> None:
    """Returns when it was told to stop. Raises ManifestError, NameTakenError or PortTakenError
    before anything is started, StartError when the instances do not come up, DeployError when
    something else does not."""
    saved = read(options.path)
    manifest = loads(saved.text, str(options.path))
    with state.claimed(manifest.name):
        _run(options, saved, manifest, console)


def _run(options: UpOptions, saved: Saved, manifest: Manifest, console: Console) -> None:
    _check_port(options.host, options.port)
    progress = Progress(console)
    progress.step(
        f"[bold]{manifest.name}[/bold]: {manifest.spec.instances} instances, "
        f"strategy {manifest.strategy.name}, from {options.path}"
    )
    template = chat_template(manifest, options.path.parent)
    settings = engine_settings(manifest, model_folder(manifest), template)
    progress.step(f"Model {settings.model}")
    if manifest.spec.autoscaling is not None:
        progress.problem("spec.autoscaling has no effect here: only the operator scales by itself")
    if manifest.spec.ingress.api_keys_secret is not None:
        progress.problem("spec.ingress.apiKeysSecret has no effect here: use --api-keys")
    try:
        asyncio.run(Deployment(options, saved, manifest, settings, progress).run())
    except ExceptionGroup as group:
        # The tasks of a deployment fall together; the first that fell says why.
        raise group.exceptions[0] from group


class Deployment:
    def __init__(
        self,
        options: UpOptions,
        saved: Saved,
        manifest: Manifest,
        settings: EngineSettings,
        progress: Progress,
    ) -> None:
        self._options = options
        self._started_from = saved
        self._manifest = manifest
        self._progress = progress
        self._admin_token = new_secret()
        self._endpoint = f"http://{options.host}:{options.port}"
        private_port = _private_port(options)
        self._private = f"http://{PRIVATE_HOST}:{private_port}"
        self._cluster = RayCluster(
            ClusterOptions(
                settings=settings,
                ingress=IngressOptions(
                    host=options.host,
                    port=options.port,
                    private_host=PRIVATE_HOST,
                    shared_private_port=private_port,
                    macroinstance=manifest.name,
                    secret=new_secret(),
                    admin_token=self._admin_token,
                    api_keys=options.api_keys,
                    attainment=manifest.spec.slo.attainment,
                ),
                ingress_replicas=manifest.spec.ingress.replicas,
                threads=max(1, (os.cpu_count() or 1) // manifest.spec.instances),
            )
        )

    async def run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        _on_stop_signal(task.cancel)
        try:
            await asyncio.to_thread(self._cluster.start)
            # Ray has put handlers of its own in place, which end the process on the spot.
            _on_stop_signal(task.cancel)
            self._progress.step("Ray and Ray Serve are up")
            await self._serve()
        except asyncio.CancelledError:
            self._progress.step("Stopping")
        finally:
            state.remove(self._manifest.name)
            await asyncio.to_thread(self._cluster.stop)
            self._progress.step("Stopped: every process has ended")

    async def _serve(self) -> None:
        admin = AdminClient(self._private, self._admin_token)
        self._reconciler = Reconciler(
            self._cluster,
            admin,
            wish(self._manifest),
            self._manifest.slo.tpot_s,
            self._progress.say,
        )
        control_token = new_secret()
        control = ControlServer(control_token, self._apply, self._scale)
        try:
            state.write(
                state.Deployment(
                    self._manifest.name,
                    os.getpid(),
                    self._endpoint,
                    self._private,
                    self._admin_token,
                    await control.start(),
                    control_token,
                )
            )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._deploy_ingress())
                tasks.create_task(self._reconciler.run())
                tasks.create_task(self._announce_ready())
                tasks.create_task(self._watch_manifest())
        finally:
            await control.stop()
            await admin.close()

    async def _deploy_ingress(self) -> None:
        await self._cluster.deploy_ingress()
        replicas = self._manifest.spec.ingress.replicas
        self._progress.step(f"{replicas} ingress replicas listen on {self._endpoint}")
        self._progress.step(f"Metrics are on {self._private}/metrics")

    async def _announce_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready()
        except TimeoutError:
            raise StartError(f"nothing was ready after {READY_TIMEOUT_S:.0f} s") from None
        api_keys = self._options.api_keys
        command = await first_request(self._endpoint, self._manifest.served_name, api_keys)
        self._progress.step("[bold green]Ready.[/bold green] Try:")
        goodbye = "macroserve status --watch      Ctrl-C here stops everything"
        print(f"\n  {command}\n\n  {goodbye}\n", flush=True)

    async def _ready(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(self._endpoint + "/ready") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.2)

    # -- live changes

    async def _watch_manifest(self) -> None:
        async for saved in saves(self._options.path, self._started_from):
            try:
                if isinstance(saved, ManifestError):
                    raise saved
                origin = str(self._options.path)
                self._change_to(await asyncio.to_thread(loads, saved.text, origin))
            except ManifestError as error:
                self._progress.problem(f"The manifest was not applied. {error}")

    def _apply(self, text: str) -> str:
        self._change_to(loads(text, "the manifest"))
        return f"{self._manifest.name} changes to {self._manifest.spec.instances} instances."

    def _scale(self, instances: int) -> str:
        if instances < 1:
            raise ManifestError(
                (f"spec.instances is {instances}, but must be a whole number of at least 1.",)
            )
        spec = self._manifest.spec.model_copy(update={"instances": instances})
        self._change_to(self._manifest.model_copy(update={"spec": spec}))
        return f"{self._manifest.name} changes to {instances} instances."

    def _change_to(self, manifest: Manifest) -> None:
        try:
            refused = changes(self._manifest, manifest)
        except Exception as error:
            # A template may hold whatever YAML can.
            raise ManifestError(("The manifest cannot be compared with what runs.",)) from error
        if refused:
            raise ManifestError(refused)
        if manifest != self._manifest:
            self._manifest = manifest
            self._reconciler.wish = wish(manifest)
            self._progress.step(f"The manifest changed: {_described(self._reconciler.wish)}")


def _on_stop_signal(stop: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _described(wish: Wish) -> str:
    bounds = f"{wish.bounds.lower} to {wish.bounds.upper} in a cell"
    return f"{wish.instances} instances, {bounds}, {wish.high_priority_ratio:.0%} high priority"


def _private_port(options: UpOptions) -> int:
    """Raises PortTakenError for one that was asked for."""
    if options.private_port is not None:
        _check_port(PRIVATE_HOST, options.private_port)
        return options.private_port
    with contextlib.suppress(PortTakenError, OverflowError):
        _check_port(PRIVATE_HOST, options.port + 1)
        return options.port + 1
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind((PRIVATE_HOST, 0))
        return sock.getsockname()[1]


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise PortTakenError(f"{host}:{port} cannot be used: {error.strerror}") from error
