"""Write the page of the command line from its own definition."""

import contextlib
import io
import re
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

`macroserve COMMAND --help` shows the same texts. A command exits with code 0 when it is done, 1
when it failed, and 2 for wrong options or a wrong manifest.

"""
DISTRIBUTIONS = {"macroserve": "macroserve", "macroserve_lab": "macroserve-lab"}
"""Distribution that installs a command, by its top-level package."""
TYPES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "path": "PATH"}


def page() -> str:
    commands = dict(
        sorted(_leaves(_command(), "macroserve"), key=lambda leaf: _distribution(leaf[1]))
    )
    overview = table(("command", "purpose", "comes with"), map(_entry, commands, commands.values()))
    sections = (_section(name, command) for name, command in commands.items())
    return HEAD + overview + "\n" + "\n".join(sections)


def _command() -> Command:
    """Return the whole command, after a harmless call of `main`, which adds further commands."""
    with (
        patch.object(sys, "argv", ["macroserve", "version"]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        main()
    return typer.main.get_command(app)


def _leaves(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    """Yield each command that has no further ones, with its full name."""
    children = getattr(command, "commands", None)
    if not children:
        yield name, command
        return
    for child, found in children.items():
        yield from _leaves(found, f"{name} {child}")


def _entry(name: str, command: Command) -> tuple[str, str, str]:
    anchor = name.replace(" ", "-")
    purpose = re.split(r"(?<=\.)\s", prose(command.help or ""))[0]
    return f"[{name}](#{anchor})", purpose, code(_distribution(command))


def _section(name: str, command: Command) -> str:
    context = command.context_class(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    text = f"## {name}\n\n{prose(command.help or '')}\n\n```text\n{usage}\n```\n"
    if (distribution := _distribution(command)) != "macroserve":
        text += f"\nComes with `{distribution}`.\n"
    if parameters := [p for p in command.params if p.name != "help"]:
        head = ("option", "value", "default", "meaning")
        text += "\n" + table(head, (_row(parameter, context) for parameter in parameters))
    return text


def _distribution(command: Command) -> str:
    return DISTRIBUTIONS[command.callback.__module__.partition(".")[0]]


def _row(parameter: Parameter, context: Context) -> tuple[str, str, str, str]:
    if parameter.param_type_name == "argument":
        names = code(parameter.name.upper())
    else:
        names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
    help_text = prose(getattr(parameter, "help", "") or "")
    return names, _value(parameter, context), _default(parameter), help_text


def _value(parameter: Parameter, context: Context) -> str:
    """Return the name that the help gives the value, or its type, with the bounds."""
    if getattr(parameter, "is_flag", False):
        return ""
    kind = parameter.display_type(context).strip("<>").removesuffix(" range")
    values = [code(parameter.metavar or TYPES.get(kind, kind))]
    if parameter.min is not None:
        values.append(f"≥ {parameter.min}")
    if parameter.max is not None:
        values.append(f"≤ {parameter.max}")
    return ", ".join(values)


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or callable(default) or default in ((), []):
        return ""
    return code(getattr(default, "value", default))
