"""The access log has one line for each request, with its numbers and without its text."""

import asyncio
import logging
from typing import Any

import pytest
from support.log_lines import log_lines
from support.token_requests import token_request

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.engine.tokens import RefusedError, StopStringMet
from macroserve.serving.ingress.served_request import ServedRequest

PROMPT = (4711, 4712, 4713)
INFO = RequestInfo(route_id="r", age_s=0.0, slo=Slo(ttft_s=1.0, tpot_s=0.1))
REQUEST = token_request("r", PROMPT, sampling={"stop": ["secret"]}, cache_salt="secret")


def served(*tokens: tuple[int, float]) -> ServedRequest:
    """Return a request that arrived at 10 s, with tokens (number, time)."""
    record = ServedRequest(10.0, INFO)
    for count, at_s in tokens:
        record.tokens(count, at_s)
    return record


def line(
    caplog: pytest.LogCaptureFixture, record: ServedRequest, end: BaseException | None = None
) -> dict[str, Any]:
    """Return the line of a request that ``end`` ends."""
    with caplog.at_level(logging.INFO):
        try:
            with record.logged(REQUEST, "model"):
                if end is not None:
                    raise end
        except BaseException as error:
            assert error is end
    [logged] = log_lines(caplog)
    return logged


def test_line_has_the_numbers_of_the_request_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    record = served((1, 10.25), (2, 10.35), (1, 10.40))
    record.num_reroutes = 2
    found = line(caplog, record)
    assert found.pop("logger")
    assert found == {
        "event": "request finished",
        "level": "info",
        "id": "r",
        "model": "model",
        "slo_class": "default",
        "prompt_tokens": 3,
        "output_tokens": 4,
        "ttft_s": 0.25,
        "tpot_s": 0.05,
        "outcome": "ok",
        "status": 200,
        "attained": True,
        "reroutes": 2,
    }
    assert "4711" not in str(found) and "secret" not in str(caplog.records[0].__dict__)


@pytest.mark.parametrize(
    ("end", "outcome", "status"),
    [
        (None, "ok", 200),
        (asyncio.CancelledError(StopStringMet(2)), "ok", 200),
        (asyncio.CancelledError(), "cancelled", 499),
        (GeneratorExit(), "cancelled", 499),
        (RefusedError(429, "late"), "refused", 429),
        (RefusedError(503, "no instance"), "failed", 503),
        (RuntimeError("a fault"), "failed", 500),
    ],
)
def test_line_tells_how_the_request_ended(
    caplog: pytest.LogCaptureFixture, end: BaseException | None, outcome: str, status: int
) -> None:
    found = line(caplog, served((1, 10.5), (1, 10.55)), end)
    assert (found["outcome"], found["status"]) == (outcome, status)
    assert found["attained"] is (outcome == "ok")


@pytest.mark.parametrize(
    ("tokens", "ttft_s", "tpot_s", "attained"),
    [
        ((), None, None, False),
        (((1, 11.0),), 1.0, None, True),
        (((1, 11.5),), 1.5, None, False),
        (((1, 10.5), (1, 10.75)), 0.5, 0.25, False),
    ],
)
def test_line_tells_whether_the_targets_were_met(
    caplog: pytest.LogCaptureFixture,
    tokens: tuple[tuple[int, float], ...],
    ttft_s: float | None,
    tpot_s: float | None,
    attained: bool,
) -> None:
    found = line(caplog, served(*tokens))
    assert (found["ttft_s"], found["tpot_s"], found["attained"]) == (ttft_s, tpot_s, attained)
