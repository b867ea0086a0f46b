"""Options for files, shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

ManifestFile = Annotated[
    Path, typer.Option("-f", "--file", metavar="FILE", help="Manifest of the MacroInstance.")
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the results as JSON."),
]
