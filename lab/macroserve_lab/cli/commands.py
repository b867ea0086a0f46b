"""Entry point of the laboratory's commands."""

import typer

# Its commands join the product's group `macroserve bench` on import.
import macroserve_lab.cli.bench  # noqa: F401
from macroserve_lab.cli.reproduce import reproduce


def add_to(app: typer.Typer) -> None:
    """Add `macroserve reproduce` and the benchmarks below `macroserve bench`."""
    app.command()(reproduce)
