"""Results of compilations are remembered, those that were asked for last."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import SamplingParams, StructuredOutputsParams  # noqa: E402

from macroserve.engine.forked import CallsBusyError  # noqa: E402
from macroserve.engine.tokens import RefusedError  # noqa: E402
from macroserve.engine.vllm import grammar  # noqa: E402


class Calls:
    """The process compiles every constraint at once, unless it is busy.

    Attributes:
        compiled: the regular expressions, in order.
    """

    def __init__(self, *args: Any) -> None:
        self.compiled: list[str] = []
        self.is_busy = False

    async def call(self, constraint: bytes) -> bytes:
        if self.is_busy:
            raise CallsBusyError
        self.compiled.append(msgspec.json.decode(constraint)["regex"])
        return b"{}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setattr(grammar, "ForkedCalls", lambda *args: calls)
    return calls


@pytest.fixture
def checks(calls: Calls) -> grammar.GrammarChecks:
    settings: Any = SimpleNamespace(to_dict=dict)
    return grammar.GrammarChecks(settings)


async def admit(checks: grammar.GrammarChecks, regex: str) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex=regex))
    assert await checks.admit(params) is params


async def test_results_that_were_asked_for_last_are_remembered(
    checks: grammar.GrammarChecks, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CACHED_RESULTS", 2)
    for regex in "abaca":
        await admit(checks, regex)
    assert calls.compiled == ["a", "b", "c"]
    await admit(checks, "b")
    assert calls.compiled == ["a", "b", "c", "b"]


async def test_request_that_found_too_many_compilations_may_be_tried_again(
    checks: grammar.GrammarChecks, calls: Calls
) -> None:
    calls.is_busy = True
    with pytest.raises(RefusedError, match="retry later"):
        await admit(checks, "a")
    calls.is_busy = False
    await admit(checks, "a")
