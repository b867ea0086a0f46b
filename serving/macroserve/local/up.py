"""``macroserve up``: a whole deployment on this machine, from one manifest, until Ctrl-C."""

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from macroserve.api.auth import new_secret
from macroserve.api.keys import Purpose
from macroserve.api.manifest import Manifest, ManifestError, changes
from macroserve.core.backoff import Backoff
from macroserve.core.scaling.fleet import DesiredFleet
from macroserve.engine.settings import EngineSettings
from macroserve.local import state
from macroserve.local.checks import check_adapters, check_parallel
from macroserve.local.cluster import ClusterOptions
from macroserve.local.control import ControlServer
from macroserve.local.deployment import DeploymentJob, DeploymentProcess
from macroserve.local.first_request import first_request, until_ready
from macroserve.local.manifest_file import (
    Saved,
    chat_template,
    engine_settings,
    loads,
    model_folder,
    read,
    saves,
)
from macroserve.serving.ingress.api_keys import ApiKeySource
from macroserve.serving.ingress.server import IngressOptions
from macroserve.serving.logs import FILE_VARIABLE
from macroserve.serving.security.key_source import KeySource

BACKOFF = Backoff()
PRIVATE_HOST = "127.0.0.1"
READY_TIMEOUT_S = 1800.0
"""Time to wait for a start, seconds; large checkpoints load slowly."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    path: Path
    host: str
    port: int
    private_port: int | None
    api_keys: ApiKeySource | None
    rehearse: str | None = None
    """Device that replaces ``spec.engine.rehearse``."""


class PortTakenError(Exception):
    """Another process listens on the port."""


class DeploymentError(Exception):
    """An error whose message is a sentence for users: the deployment does not start."""


class Progress:
    """Terminal output of the command: a line per step, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def step(self, text: str) -> None:
        elapsed = time.monotonic() - self._start
        line = f"[dim]{elapsed:7.1f}s[/dim]  {text}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line of plain text; brackets are not markup."""
        self.step(escape(text))

    def problem(self, text: str) -> None:
        self.step(f"[red]{escape(text)}[/red]")


def run(options: UpOptions, console: Console) -> None:
    """Run the deployment until a signal stops it.

    Raises ManifestError, NameTakenError or PortTakenError before anything starts, DeploymentError
    if the deployment does not start.
    """
    saved = read(options.path)
    manifest = loads(saved.text, str(options.path), options.rehearse)
    with state.claimed(manifest.name):
        _run(options, saved, manifest, console)


def _run(options: UpOptions, saved: Saved, manifest: Manifest, console: Console) -> None:
    _check_port(options.host, options.port)
    progress = Progress(console)
    progress.step(
        f"[bold]{manifest.name}[/bold]: {manifest.spec.instances} instances, "
        f"strategy {manifest.strategy.name}, from {escape(str(options.path))}"
    )
    log_file = state.log_file(manifest.name)
    os.environ[FILE_VARIABLE] = str(log_file)
    progress.say(f"Logs are in {log_file}")
    template = chat_template(manifest, options.path.parent)
    model = model_folder(manifest)
    check_adapters(manifest, model)
    settings = engine_settings(manifest, model, template)
    check_parallel(settings)
    progress.say(f"Model {settings.model}")
    if settings.rehearse:
        progress.say(f"Rehearsal: answers are made up, at the pace of {settings.rehearse}")
    if manifest.spec.autoscaling is not None:
        progress.problem(
            "spec.autoscaling has no effect here: only the operator scales automatically"
        )
    if manifest.spec.ingress.api_keys_secret is not None:
        progress.problem("spec.ingress.apiKeysSecret has no effect here: use --api-keys")
    try:
        asyncio.run(Up(options, saved, manifest, settings, progress).run())
    except ExceptionGroup as group:
        # The tasks of a deployment end together; the first has the cause.
        raise group.exceptions[0] from group


class Up:
    """The running command: holds the current manifest, accepts orders, prints progress.

    The deployment runs in a separate process, which is restarted if lost.
    """

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
        secret = new_secret()
        self._private = f"http://{PRIVATE_HOST}:{private_port}"
        self._process = DeploymentProcess(progress.say)
        self._is_ready = False
        self._cluster = ClusterOptions(
            settings=settings,
            ingress=IngressOptions(
                host=options.host,
                port=options.port,
                private_host=PRIVATE_HOST,
                shared_private_port=private_port,
                macroinstance=manifest.name,
                keys=KeySource(tuple(Purpose), secret=secret),
                admin_token=self._admin_token,
                api_keys=options.api_keys,
                stream_interval=manifest.spec.ingress.stream_interval,
                attainment=manifest.spec.slo.attainment,
            ),
            ingress_replicas=manifest.spec.ingress.replica_bounds[0],
            threads=max(1, (os.cpu_count() or 1) // manifest.spec.instances),
            secret=secret,
        )

    async def run(self) -> None:
        """Run until SIGINT or SIGTERM. Raises DeploymentError if the first start fails."""
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if not task.cancelling():
                self._progress.step("Stopping")
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        control_token = new_secret()
        control = ControlServer(control_token, self._apply, self._scale)
        try:
            state.write(
                state.RunningDeployment(
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
                tasks.create_task(self._keep_deployed())
                tasks.create_task(self._watch_manifest())
        except asyncio.CancelledError:
            pass
        finally:
            state.remove(self._manifest.name)
            await control.stop()
            self._progress.step("Stopped: every process has ended")

    async def _keep_deployed(self) -> None:
        """Restart the deployment when it ends. Raises DeploymentError if it was never ready."""
        has_been_ready, num_failures = False, 0
        while True:
            reason = await self._deploy()
            has_been_ready = has_been_ready or self._is_ready
            if not has_been_ready:
                raise DeploymentError(reason)
            num_failures = 1 if self._is_ready else num_failures + 1
            delay_s = BACKOFF.delay_s(num_failures)
            self._progress.problem(f"{reason} Everything restarts in {delay_s:.0f} s.")
            await asyncio.sleep(delay_s)

    async def _deploy(self) -> str:
        """Run the deployment and return why it ended; record whether it was ready."""
        self._is_ready = False
        announcing = asyncio.create_task(self._announce_ready())
        try:
            return await self._process.run(
                DeploymentJob(
                    self._cluster,
                    self._private,
                    self._admin_token,
                    self._manifest.desired_fleet(),
                    self._manifest.slo.tpot_s,
                )
            )
        finally:
            announcing.cancel()

    async def _announce_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await until_ready(self._endpoint)
        except TimeoutError:
            self._process.end(f"Nothing was ready after {READY_TIMEOUT_S:.0f} s.")
            return
        self._is_ready = True
        api_keys = self._options.api_keys
        command = await first_request(self._endpoint, self._manifest.served_name, api_keys)
        self._progress.step("[bold green]Ready.[/bold green] Try:")
        goodbye = "macroserve status --watch      Ctrl-C here stops everything"
        print(f"\n  {command}\n\n  {goodbye}\n", flush=True)

    # -- live changes

    async def _watch_manifest(self) -> None:
        async for saved in saves(self._options.path, self._started_from):
            try:
                if isinstance(saved, ManifestError):
                    raise saved
                origin, device = str(self._options.path), self._options.rehearse
                self._change_to(await asyncio.to_thread(loads, saved.text, origin, device))
            except ManifestError as error:
                self._progress.problem(f"The manifest was not applied. {error}")

    def _apply(self, text: str) -> str:
        self._change_to(loads(text, "the manifest", self._options.rehearse))
        return f"Scaling {self._manifest.name} to {self._manifest.spec.instances} instances."

    def _scale(self, instances: int) -> str:
        if instances < 1:
            raise ManifestError(
                (f"spec.instances is {instances}, but must be a whole number of at least 1.",)
            )
        spec = self._manifest.spec.model_copy(update={"instances": instances})
        self._change_to(self._manifest.model_copy(update={"spec": spec}))
        return f"Scaling {self._manifest.name} to {instances} instances."

    def _change_to(self, manifest: Manifest) -> None:
        try:
            refused = changes(self._manifest, manifest)
        except Exception as error:
            # A pod template may contain any YAML.
            raise ManifestError(
                ("The manifest cannot be compared with the running deployment.",)
            ) from error
        if refused:
            raise ManifestError(refused)
        if manifest != self._manifest:
            self._manifest = manifest
            changed = manifest.desired_fleet()
            self._process.change(changed)
            self._progress.step(f"The manifest changed: {_described(changed)}")


def _described(desired: DesiredFleet) -> str:
    bounds = f"{desired.bounds.lower} to {desired.bounds.upper} in a cell"
    ratio = f"{desired.high_priority_ratio:.0%} high priority"
    return f"{desired.desired_instances} instances, {bounds}, {ratio}"


def _private_port(options: UpOptions) -> int:
    """Return a free private port. Raises PortTakenError if the given one is taken."""
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
