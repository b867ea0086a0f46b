"""Log lines in JSON and in text, neither with values of variables."""

import json
import logging
import sys

import pytest

from macroserve.api.logs import formatter, get_logger
from macroserve.serving import logs


def record_of(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    with caplog.at_level(logging.INFO):
        get_logger("macroserve.cell").warning("instance lost", cell="cell-0", instance="a")
    [record] = caplog.records
    return record


def test_json_line_has_the_event_and_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    line = json.loads(formatter(readable=False).format(record_of(caplog)))
    assert line.pop("timestamp")
    assert line == {
        "event": "instance lost",
        "level": "warning",
        "logger": "macroserve.cell",
        "cell": "cell-0",
        "instance": "a",
    }


def test_readable_line_has_the_event_and_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    line = formatter(readable=True).format(record_of(caplog))
    assert "instance lost" in line and "cell=cell-0 instance=a" in line


@pytest.mark.parametrize("readable", [True, False])
def test_traceback_shows_no_values_of_variables(readable: bool) -> None:
    prompt = "a secret " + "prompt"
    try:
        raise ValueError(len(prompt))
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "failed", None, sys.exc_info())
    line = formatter(readable).format(record)
    assert "ValueError" in line and "a secret prompt" not in line


def test_configured_logs_go_to_the_file_that_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(logs.FILE_VARIABLE, str(tmp_path / "log"))
    logs.configure()
    get_logger("macroserve.cell").info("instance joined", instance="a")
    assert "instance joined" in (tmp_path / "log").read_text()
