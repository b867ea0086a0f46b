"""Write the page of the command line from its own definition."""

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import typer
from tables import code, prose, table

from macroserve.cli.app import app, main

Command = Context = Parameter = Any
"""Typer's copies of click's classes, which it does not export."""
HEAD = """# Command line

This page is generated from the commands themselves; `macroserve COMMAND --help` shows the same
texts. A command ends with exit code 0 when it is done, 1 when it failed, and 2 for wrong options or
a wrong manifest.

"""


def page() -> str:
    return HEAD + "\n".join(_sections(_command(), "macroserve"))


def _command() -> Command:
    """Return the whole command. `main` adds what is imported late, so one harmless call comes
    first."""
    with (
        patch.object(sys, "argv", ["macroserve", "version"]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        main()
    return typer.main.get_command(app)


def _sections(command: Command, name: str) -> Iterator[str]:
    if children := getattr(command, "commands", None):
        for child, found in children.items():
            yield from _sections(found, f"{name} {child}")
        return
    context = command.context_class(command, info_name=name)
    yield f"## {name}\n\n{prose(command.help or '')}\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    parameters = [p for p in command.params if p.name != "help"]
    if parameters:
        yield table(
            ("option", "value", "default", "meaning"),
            (_row(parameter, context) for parameter in parameters),
        )


def _row(parameter: Parameter, context: Context) -> tuple[str, str, str, str]:
    if parameter.param_type_name == "argument":
        names = code(parameter.name.upper())
    else:
        names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    kind = "" if getattr(parameter, "is_flag", False) else parameter.display_type(context)
    return names, code(kind), _default(parameter), prose(getattr(parameter, "help", "") or "")


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or callable(default) or default in ((), []):
        return ""
    return code(getattr(default, "value", default))
