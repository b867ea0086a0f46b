"""Calls of commands, and completions of a shell."""

import os
import subprocess
import sys
from pathlib import Path

from typer import Typer
from typer.testing import CliRunner

_COMPLETE = """
eval "$(_MACROSERVE_COMPLETE=source_bash macroserve)"
complete -p macroserve >/dev/null
for line in "$@"; do
    IFS=, read -ra COMP_WORDS <<< "$line,end"
    unset "COMP_WORDS[-1]"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _macroserve_completion macroserve
    (IFS=" "; echo "${COMPREPLY[*]}")
done
"""
"""A shell script that sources the completion and completes the last word of each argument."""


def completions(lines: list[str]) -> dict[str, str]:
    """Return bash's completions of the last word of each line, joined by commas."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "--norc", "-ec", _COMPLETE, "bash", *lines]
    offered = subprocess.check_output(command, text=True, env=environment, timeout=300)
    return dict(zip(lines, offered.splitlines(), strict=True))


def invoke(command, *arguments: str):
    """Run a function as a command, or a group of commands, on a wide terminal."""
    if isinstance(command, Typer):
        app = command
    else:
        app = Typer()
        app.command()(command)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "800"})
