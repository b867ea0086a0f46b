"""Failure of a command, with a reason and an exit code."""

from typing import NoReturn

import typer


def fail(command: str, reason: object, code: int) -> NoReturn:
    """End ``macroserve COMMAND`` with the reason on stderr and the exit code."""
    typer.echo(f"macroserve {command}: {reason}", err=True)
    raise typer.Exit(code)
