"""The ``macroserve`` command: parses options, prints, sets exit codes; other packages work.

Exit codes: 0 done, 1 failed, 2 wrong options or manifest.
"""

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from macroserve.cli.choices import DEVICES
from macroserve.cli.extras import extra_of, missing
from macroserve.cli.file_options import ManifestFile

if TYPE_CHECKING:
    from macroserve.serving.ingress.api_keys import ApiKeySource

EXTENSIONS = "macroserve.commands"
"""Entry points of other distributions: functions that add commands to the app."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve large language models on many instances under latency targets.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Name = Annotated[
    str | None, typer.Option(help="Name of the deployment, if several run on this machine.")
]


def main() -> None:
    from macroserve.cli.bench import bench
    from macroserve.cli.plan.command import plan
    from macroserve.cli.profile.command import profile
    from macroserve.cli.run import run
    from macroserve.cli.simulate.command import simulate

    app.add_typer(bench, name="bench")
    app.command()(plan)
    app.command()(profile)
    app.command()(simulate)
    app.add_typer(run, name="run")
    for extension in importlib.metadata.entry_points(group=EXTENSIONS):
        extension.load()(app)
    try:
        app()
    except OSError as error:
        # Every command may encounter a full disk, a read-only folder or a port in use.
        errors.print(f"[red]error:[/red] {escape(_describe(error))}", soft_wrap=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (extra := extra_of(error.name)) is None:
            raise
        errors.print(f"[red]error:[/red] {escape(missing(str(error.name), extra))}", soft_wrap=True)
        sys.exit(1)


@app.command()
def version() -> None:
    """Print the version of Macroserve."""
    console.print(importlib.metadata.version("macroserve"))


@app.command()
def up(
    manifest: ManifestFile,
    host: Annotated[
        str, typer.Option(help="Address that the OpenAI endpoint listens on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port of the OpenAI endpoint.", min=1, max=65535)
    ] = 8000,
    private_port: Annotated[
        int | None,
        typer.Option(
            help="Port of metrics and status, on 127.0.0.1 only "
            "(default: the next one after --port, or any free one).",
            min=1,
            max=65535,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the API keys that clients may use, one per line; changes take effect "
            "within seconds. Without it, MACROSERVE_API_KEYS has the keys, separated by commas.",
        ),
    ] = None,
    rehearse: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Rehearse at the pace of a device, with made-up answers, instead of running the "
            f"model: {DEVICES}.",
            autocompletion=DEVICES.complete,
            callback=DEVICES.check,
        ),
    ] = None,
) -> None:
    """Run a deployment on this machine, without Kubernetes, until Ctrl-C."""
    from macroserve.api.manifest import ManifestError
    from macroserve.local.state import NameTakenError
    from macroserve.local.up import DeploymentError, PortTakenError, UpOptions, run

    # Only child processes import vLLM, some seconds later.
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError(name="vllm")
    try:
        run(UpOptions(manifest, host, port, private_port, _api_keys(api_keys), rehearse), console)
    except ManifestError as error:
        _fail(str(error), 2)
    except (NameTakenError, PortTakenError, DeploymentError) as error:
        _fail(str(error), 1)


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    name: Name = None,
) -> None:
    """Show the cells, instances, phases, queues and SLO attainment of a running deployment."""
    from macroserve.api.client import AdminError
    from macroserve.cli.status import show_once
    from macroserve.cli.status import watch as follow
    from macroserve.local import state

    try:
        deployment = state.find(name)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run((follow if watch else show_once)(deployment, console))
    except (state.NotRunningError, AdminError) as error:
        _fail(str(error), 1)


@app.command()
def scale(
    instances: Annotated[int, typer.Argument(help="Desired number of instances.", min=1)],
    name: Name = None,
) -> None:
    """Change the number of instances of a running deployment."""
    _order(name, "scale", str(instances))


@app.command()
def apply(
    manifest: Annotated[
        Path,
        typer.Option("-f", "--file", metavar="FILE", help="Changed manifest of the MacroInstance."),
    ],
) -> None:
    """Apply a changed manifest to the running deployment of the same name."""
    from macroserve.api.manifest import ManifestError
    from macroserve.local.manifest_file import loads, read

    try:
        text = read(manifest).text
        name = loads(text, str(manifest)).name
    except ManifestError as error:
        _fail(str(error), 2)
    _order(name, "apply", text)


def _order(name: str | None, order: str, body: str) -> None:
    from macroserve.local import state
    from macroserve.local.control import OrderRefusedError, send

    try:
        console.print(send(state.find(name), order, body))
    except state.NotRunningError as error:
        _fail(str(error), 1)
    except OrderRefusedError as error:
        _fail(str(error), 2)


def _api_keys(path: Path | None) -> "ApiKeySource | None":
    """Return the keys of the file or the environment.

    The command line contains no keys, because other users can read it.
    """
    from macroserve.serving.ingress.api_keys import (
        ENVIRONMENT,
        ApiKeysError,
        ApiKeySource,
        environment_source,
    )

    try:
        if path is not None:
            # Ingress replicas read the file from other working folders.
            source = ApiKeySource(path.absolute())
            source.read()
            return source
        if (value := os.environ.get(ENVIRONMENT)) is not None:
            return environment_source(value)
    except ApiKeysError as error:
        _fail(str(error), 2)
    return None


def _describe(error: OSError) -> str:
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*files, error.strerror or str(error) or type(error).__name__])


def _fail(message: str, code: int) -> NoReturn:
    errors.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)
