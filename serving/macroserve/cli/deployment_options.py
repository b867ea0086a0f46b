"""Options for a deployment to simulate, shared by ``simulate`` and ``plan``."""

from dataclasses import dataclass
from typing import Annotated

import typer

from macroserve.cli.choices import DEVICES, Choices
from macroserve.cli.file_options import ManifestFile
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS

_LINKS, _MODELS = Choices(LINKS), Choices(MODELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """A manifest, and the model and devices to simulate it with."""

    manifest: ManifestFile
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help=f"Device type: {DEVICES}.",
            autocompletion=DEVICES.complete,
            callback=DEVICES.check,
        ),
    ]
    link: Annotated[
        str,
        typer.Option(
            metavar="LINK",
            help=f"Link between the devices of an instance: {_LINKS}.",
            autocompletion=_LINKS.complete,
            callback=_LINKS.check,
        ),
    ] = "pcie4"
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model shape in place of the manifest's: a folder with a config.json, or one of "
            f"{_MODELS}.",
            autocompletion=_MODELS.complete,
        ),
    ] = None
