"""The page of log events lists each event of the code, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "logs.md"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"log", "_log", "about"}


def logged() -> Iterator[ast.expr]:
    """Yield the event of each log call."""
    for folder in ("serving", "operator"):
        for path in (ROOT / folder / "macroserve").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and name(node.func.value) in LOGGERS
                ):
                    yield node.args[0]


def name(logger: ast.expr) -> str:
    """Return the name of ``log``, ``self._log`` or ``about(...)``."""
    match logger:
        case ast.Name(found) | ast.Attribute(attr=found) | ast.Call(func=ast.Name(found)):
            return found
    return ""


def test_each_log_event_is_a_constant_on_the_page() -> None:
    events = {ast.literal_eval(event) for event in logged()}
    _, tables = PAGE.read_text().split("\n## Events\n")
    cells = re.findall(r"^\| (`.+?) \|", tables, re.MULTILINE)
    listed = {event for cell in cells for event in re.findall(r"`([^`]+)`", cell)}
    assert listed == events
