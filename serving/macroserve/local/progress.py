"""Print the progress of ``macroserve up`` for the person who started it."""

import time

from rich.console import Console
from rich.markup import escape


class Progress:
    """The progress is printed one line a step, with the time since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def step(self, text: str) -> None:
        elapsed = time.monotonic() - self._start
        line = f"[dim]{elapsed:7.1f}s[/dim]  {text}"
        self._console.print(line, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line. ``text`` may come from elsewhere, so brackets in it are no markup."""
        self.step(escape(text))

    def problem(self, text: str) -> None:
        self.step(f"[red]{escape(text)}[/red]")
