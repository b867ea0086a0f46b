"""The options of ``simulate`` and ``plan`` that name the manifest, the model and the devices."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from macroserve.sim.hardware.devices import DEVICES
from macroserve.sim.hardware.links import LINKS
from macroserve.sim.hardware.models import MODELS


def _completed(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what completes one of ``names`` in the shell."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


ManifestFile = Annotated[Path, typer.Option("-f", "--file", help="Manifest of the MacroInstance.")]
Device = Annotated[
    str,
    typer.Option(help=f"Device type: {', '.join(DEVICES)}.", autocompletion=_completed(DEVICES)),
]
Link = Annotated[
    str,
    typer.Option(
        help=f"Link between the devices of an instance: {', '.join(LINKS)}.",
        autocompletion=_completed(LINKS),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Model shape in place of the manifest's: a folder with a config.json, or one of "
        f"{', '.join(MODELS)}.",
        autocompletion=_completed(MODELS),
    ),
]
DEFAULT_LINK = "pcie4"
