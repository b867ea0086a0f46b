"""The ``macroserve`` command: parses options, prints, sets exit codes; the work is elsewhere.

Exit codes: 0 done, 1 failed, 2 wrong options or a wrong manifest.
"""

import asyncio
import contextlib
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from macroserve.serving.ingress.api_keys import ApiKeySource

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve large language models through macro instances.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Name = Annotated[str | None, typer.Option(help="Which deployment, if several run here.")]


def main() -> None:
    from macroserve.cli.bench import bench
    from macroserve.cli.plan.command import plan
    from macroserve.cli.profile.command import profile
    from macroserve.cli.reproduce.command import reproduce
    from macroserve.cli.run import run
    from macroserve.cli.simulate.command import simulate

    app.add_typer(bench, name="bench")
    app.command()(plan)
    app.command()(profile)
    app.command()(reproduce)
    app.command()(simulate)
    app.add_typer(run, name="run")
    try:
        app()
    except OSError as error:
        # Any command may meet a full disk, a folder that it may not write to or a port in use.
        errors.print(f"[red]error:[/red] {escape(_told(error))}", soft_wrap=True)
        sys.exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(importlib.metadata.version("macroserve"))


@app.command()
def up(
    manifest: Annotated[Path, typer.Option("-f", "--file", help="The MacroInstance to run.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the endpoint.", min=1, max=65535)] = 8000,
    private_port: Annotated[
        int | None,
        typer.Option(
            help="Port of metrics and status, on 127.0.0.1 only. "
            "By default the next one after --port, or any free one.",
            min=1,
            max=65535,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="A file of API keys, one a line (or MACROSERVE_API_KEYS, with commas). "
            "Changes of the file take effect within seconds."
        ),
    ] = None,
) -> None:
    """Run a whole deployment on this machine until Ctrl-C."""
    from macroserve.api.manifest import ManifestError
    from macroserve.local.state import NameTakenError
    from macroserve.local.up import DeploymentError, PortTakenError, UpOptions, run

    try:
        run(UpOptions(manifest, host, port, private_port, _api_keys(api_keys)), console)
    except ManifestError as error:
        _fail(str(error), 2)
    except (NameTakenError, PortTakenError, DeploymentError) as error:
        _fail(str(error), 1)


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow until Ctrl-C.")] = False,
    name: Name = None,
) -> None:
    """Show cells, instances, phases, queues and attainment."""
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
    instances: Annotated[int, typer.Argument(help="How many instances to run.", min=1)],
    name: Name = None,
) -> None:
    """Change the number of instances of a running deployment."""
    _order(name, "scale", str(instances))


@app.command()
def apply(
    manifest: Annotated[Path, typer.Option("-f", "--file", help="The changed MacroInstance.")],
) -> None:
    """Change a running deployment to what a manifest says."""
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
    """From the file or the environment: never from the command line, where others can read it."""
    from macroserve.serving.ingress.api_keys import (
        ENVIRONMENT,
        ApiKeysError,
        ApiKeySource,
        environment_source,
    )

    try:
        if path is not None:
            # Absolute: the ingress replicas read it again, in processes and folders of their own.
            source = ApiKeySource(path.absolute())
            source.read()
            return source
        if (value := os.environ.get(ENVIRONMENT)) is not None:
            return environment_source(value)
    except ApiKeysError as error:
        _fail(str(error), 2)
    return None


def _told(error: OSError) -> str:
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*files, error.strerror or str(error) or type(error).__name__])


def _fail(message: str, code: int) -> NoReturn:
    errors.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
    raise typer.Exit(code)
