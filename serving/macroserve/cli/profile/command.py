"""The command ``macroserve profile``: its options and exit codes."""

import asyncio
import json

import typer
from rich.console import Console

from macroserve.api.manifest import ManifestError
from macroserve.cli.failure import fail
from macroserve.cli.file_options import JsonFile, ManifestFile
from macroserve.local.manifest_file import engine_settings, load, model_folder

STEADY = 1.5
"""Largest ratio between the slowest and the fastest round on a quiet machine."""


def profile(manifest: ManifestFile, json_file: JsonFile = None) -> None:
    """Fit the latency model of a manifest's engine to measurements on this machine.

    The figures are the model's coefficients and Apt-Serve's rho, the cost of hidden states.
    """
    try:
        wanted = load(manifest)
        if wanted.spec.engine.type == "Emulated":
            raise ManifestError(("spec.engine.type is Emulated: there is no engine to measure.",))
        settings = engine_settings(wanted, model_folder(wanted))
    except ManifestError as error:
        fail("profile", error, 2)

    from macroserve.engine.vllm.environment import prepare_environment

    prepare_environment()
    from macroserve.bench.profile import measure
    from macroserve.cli.profile.report import document, table

    try:
        found = asyncio.run(measure(settings))
    except (ValueError, RuntimeError, TimeoutError) as error:
        fail("profile", str(error) or "the engine does not finish its requests", 1)
    Console().print(table(found))
    if found.spread > STEADY:
        typer.echo(
            "macroserve profile: the rounds differ too much. Is anything else using this machine? "
            "Retry when it is idle.",
            err=True,
        )
    if json_file:
        json_file.write_text(json.dumps(document(found), indent=2) + "\n")
