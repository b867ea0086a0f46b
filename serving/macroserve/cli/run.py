"""``macroserve run``: one component of a deployment in its pod, as the operator starts it.

Exit codes: 0 asked to stop, 1 failed, 2 wrong options, manifest or files.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from macroserve.api.keys import Role
from macroserve.api.manifest import Manifest, ManifestError
from macroserve.api.tls import tls_name
from macroserve.cli.file_options import ManifestFile
from macroserve.cli.pod import (
    LiveToken,
    PodError,
    fail,
    key_source,
    serve,
    use_cpu_limit,
)
from macroserve.core.status import Pool
from macroserve.local.checks import check_adapters
from macroserve.local.manifest_file import chat_template, engine_settings, load, model_folder
from macroserve.local.model_cache import cache_folders
from macroserve.serving import logs
from macroserve.serving.ingress.api_keys import ApiKeysError, ApiKeySource
from macroserve.serving.security.tls import TlsSource

ADMIN_TOKEN = "admin-token"

run = typer.Typer(
    no_args_is_help=True, help="Run one component of a deployment, as in the operator's pods."
)

Host = Annotated[str, typer.Option(envvar="POD_IP", help="IP address of this pod.")]
Namespace = Annotated[
    str, typer.Option(envvar="MACROSERVE_NAMESPACE", help="Namespace of the MacroInstance.")
]
Tokens = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER", help="Folder with the deployment's keys and tokens, one file each."
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with tls.crt, tls.key and ca.crt for NAME.NAMESPACE.macroserve.internal "
        "(default: plain HTTP between the pods).",
    ),
]
Grace = Annotated[
    float, typer.Option(help="Seconds for accepted requests to finish after SIGTERM.", min=0)
]

DEFAULT_MANIFEST = Path("/etc/macroserve/manifest/macroinstance.json")
DEFAULT_TOKENS = Path("/etc/macroserve/tokens")
DEFAULT_API_KEYS = Path("/etc/macroserve/api-keys")
CHAT_TEMPLATE = Path("/etc/macroserve/chat-template")
FETCHED = Path(tempfile.gettempdir()) / "macroserve-fetched"
"""File that a pod's init container creates if it has fetched something, for its instance."""


def _ports(text: str) -> range:
    """Return the ports of FIRST-LAST; raise BadParameter for other text."""
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", text)
    if not found or not int(found[1]) <= int(found[2]) < 2**16:
        raise typer.BadParameter(
            f"{text!r} is not FIRST-LAST, two ports.", param_hint="'--cell-ports'"
        )
    return range(int(found[1]), int(found[2]) + 1)


@run.command()
def head(
    host: Host,
    manifest: ManifestFile = DEFAULT_MANIFEST,
    port: Annotated[int, typer.Option(help="Port of the control API.", min=1, max=65535)] = 8100,
    tokens: Tokens = DEFAULT_TOKENS,
    instances_service: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Services that resolve to the instances' addresses, separated by commas "
            "(default: port 8001 of the Service NAME-instances).",
        ),
    ] = None,
    cell_ports: Annotated[
        str,
        typer.Option(
            metavar="FIRST-LAST", help="Ports of the cell schedulers; 0-0 uses any free ones."
        ),
    ] = "0-0",
    namespace: Namespace = "default",
    tls: Tls = None,
) -> None:
    """Run the head: the cell schedulers and their control API."""
    ports = _ports(cell_ports)

    async def serve_part() -> None:
        resource = load(manifest)
        keys = key_source(tokens, Role.HEAD, _tls(tls, namespace, resource))
        admin_token = LiveToken(tokens, ADMIN_TOKEN)
        services = instances_service or f"{resource.name}-instances:8001"

        from macroserve.serving.discovery import DnsInstances
        from macroserve.serving.head.server import HeadOptions, HeadServer
        from macroserve.serving.ray.cell_deployment import CellOptions
        from macroserve.serving.ray.cells import RayCells

        discovery = DnsInstances(tuple(services.split(",")), keys)
        cells = RayCells(
            f"macroserve-{resource.name}",
            CellOptions(
                strategy=resource.strategy.name,
                slo=resource.slo,
                discovery=discovery,
                keys=keys,
                host=host,
                ports=ports,
            ),
        )
        options = HeadOptions(host=host, port=port, keys=keys, admin_token=admin_token)
        await serve(HeadServer(cells, discovery, options), "head", f"{host}:{port}")

    _run("the head", serve_part)


@run.command()
def ingress(
    host: Host,
    manifest: ManifestFile = DEFAULT_MANIFEST,
    listen: Annotated[
        str, typer.Option(help="Address that the OpenAI endpoint listens on.")
    ] = "0.0.0.0",
    port: Annotated[
        int, typer.Option(help="Port of the OpenAI endpoint.", min=1, max=65535)
    ] = 8000,
    private_port: Annotated[
        int,
        typer.Option(
            help="Port of metrics, for other ingress pods and Prometheus.", min=1, max=65535
        ),
    ] = 8001,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="URL of the head (default: port 8100 of the Service NAME-head)."
        ),
    ] = None,
    namespace: Namespace = "default",
    tokens: Tokens = DEFAULT_TOKENS,
    api_keys: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder of API keys; read if spec.ingress.apiKeysSecret is set."
        ),
    ] = DEFAULT_API_KEYS,
    tls: Tls = None,
    grace: Grace = 285.0,
) -> None:
    """Run one ingress replica: the OpenAI endpoint, without an engine."""

    async def serve_part() -> None:
        resource = load(manifest)
        keys = key_source(tokens, Role.INGRESS, _tls(tls, namespace, resource))
        clients = ApiKeySource(api_keys) if resource.spec.ingress.api_keys_secret else None
        if clients:
            clients.read()
        settings = engine_settings(
            resource,
            model_folder(resource),
            chat_template(resource, manifest.parent, CHAT_TEMPLATE),
        )
        scheme = "https" if tls else "http"
        head_url = (head or f"{scheme}://{resource.name}-head:8100").rstrip("/")

        from macroserve.serving.ingress.server import IngressOptions, IngressServer

        options = IngressOptions(
            host=listen,
            port=port,
            private_host=host,
            private_port=private_port,
            namespace=namespace,
            macroinstance=resource.name,
            keys=keys,
            api_keys=clients,
            stream_interval=resource.spec.ingress.stream_interval,
            attainment=resource.spec.slo.attainment,
            grace_s=grace,
        )
        server = IngressServer(settings, options, head_url)
        await serve(server, "ingress", f"{listen}:{port}")

    _run("the ingress", serve_part)


@run.command()
def instance(
    host: Host,
    name: Annotated[str, typer.Option(envvar="MACROSERVE_INSTANCE", help="Name of the instance.")],
    pool: Annotated[
        Pool, typer.Option(envvar="MACROSERVE_POOL", help="Pool of the instance: lp or hp.")
    ] = Pool.LP,
    manifest: ManifestFile = DEFAULT_MANIFEST,
    port: Annotated[
        int, typer.Option(help="Port that serves token streams.", min=1, max=65535)
    ] = 8000,
    control_port: Annotated[
        int, typer.Option(help="Port of status, for cell schedulers and probes.", min=1, max=65535)
    ] = 8001,
    namespace: Namespace = "default",
    tokens: Tokens = DEFAULT_TOKENS,
    tls: Tls = None,
    grace: Grace = 290.0,
) -> None:
    """Run one instance: an engine and its servers."""

    async def serve_part() -> None:
        resource = load(manifest)
        keys = key_source(tokens, Role.INSTANCE, _tls(tls, namespace, resource))

        from macroserve.serving.instance.start import CacheWatch

        caches = CacheWatch(cache_folders(resource), grown=FETCHED.exists())
        model = _model(resource)
        check_adapters(resource, model)
        settings = engine_settings(resource, model)
        use_cpu_limit()

        from macroserve.serving.instance.server import InstanceOptions, InstanceServer
        from macroserve.serving.instance.token_process import TokenProcess
        from macroserve.serving.instance.token_server import TokenServerOptions

        server = TokenProcess(
            TokenServerOptions(
                settings=settings, name=name, pool=pool, host=host, port=port, keys=keys
            )
        )
        options = InstanceOptions(
            name,
            namespace,
            incarnation=int(time.time() * 1000),
            keys=keys,
            pool=pool,
            host=host,
            control_port=control_port,
            grace_s=grace,
            caches=caches,
        )
        instance = InstanceServer(settings, options, server)
        await serve(instance, name, f"{host}:{port}")

    _run(name, serve_part)


@run.command()
def fetch(manifest: ManifestFile = DEFAULT_MANIFEST) -> None:
    """Download the model into the pod's caches, and exit."""

    async def fetch_all() -> None:
        resource = load(manifest)

        from macroserve.local.model_fetch import fetch_model
        from macroserve.serving.instance.start import CacheWatch

        caches = CacheWatch(cache_folders(resource))
        await asyncio.to_thread(fetch_model, resource)
        if caches.grown:
            FETCHED.touch()

    _run("the download of the model", fetch_all)


def _tls(folder: Path | None, namespace: str, manifest: Manifest) -> TlsSource | None:
    return TlsSource(str(folder), tls_name(namespace, manifest.name)) if folder else None


def _model(manifest: Manifest) -> str:
    """Return the model's folder; for an emulated engine, which reads none, the source's name."""
    emulated = manifest.spec.engine.type == "Emulated"
    return manifest.spec.model.source if emulated else model_folder(manifest)


def _run(what: str, serve_part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    logs.configure()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_part())
    except (ManifestError, PodError, ApiKeysError) as error:
        fail(str(error), 2)
    except Exception as error:
        # Engines and servers raise many types: a bad model, no memory, a port in use.
        from macroserve.serving.causes import cause_of

        fail(f"{what} has ended: {cause_of(error)}", 1)
