"""The options that say what is simulated, and where it would run."""

from pathlib import Path
from typing import Annotated

import typer

ManifestFile = Annotated[Path, typer.Option("-f", "--file", help="The MacroInstance.")]
Device = Annotated[str, typer.Option(help="To run on; a name that is none lists them.")]
Link = Annotated[
    str, typer.Option(help="Between an instance's devices; a name that is none lists them.")
]
Model = Annotated[
    str | None,
    typer.Option(help="The shape to take, not the manifest's: a name or a checkpoint's folder."),
]
DEFAULT_LINK = "pcie4"
