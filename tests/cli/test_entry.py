"""The command handles SIGTERM from its start on."""

import signal
import subprocess
import sys
from types import ModuleType

import pytest

from macroserve.cli import entry


def test_entry_handles_sigterm_before_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ModuleType("macroserve.cli.app")
    app.main = lambda: signal.raise_signal(signal.SIGTERM)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, app.__name__, app)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            entry.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143


def test_entry_imports_nothing_slow() -> None:
    code = "import sys, macroserve.cli.entry; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"asyncio", "typer", "pydantic", "macroserve.cli.app"} & set(modules)
