"""Constraints of requests are compiled in another process before the requests are admitted."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.grammar import COMPILE_CPU_S, GrammarChecks

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
async def checks(settings: EngineSettings) -> AsyncIterator[GrammarChecks]:
    checks = GrammarChecks(settings)
    checks.install()
    await checks.start()
    yield checks
    await checks.stop()


async def admitted(checks: GrammarChecks, **constraint: Any) -> StructuredOutputsParams:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    outputs = (await checks.admit(params)).structured_outputs
    assert outputs is not None
    return outputs


def hard(number: int) -> dict[str, Any]:
    pattern = f"(a{{1,{1400 + number}}}){{1,1400}}"
    names = (f"p{i}" for i in range(250))
    return {
        "type": "object",
        "properties": {name: {"type": "string", "pattern": pattern} for name in names},
    }


async def test_constraint_that_compiles_is_admitted_unchanged(checks: GrammarChecks) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert (await admitted(checks, json=schema)).json == schema
    assert (await admitted(checks, regex="a+b")).regex == "a+b"
    params = SamplingParams()
    assert await checks.admit(params) is params


async def test_constraint_of_choices_becomes_a_grammar(checks: GrammarChecks) -> None:
    outputs = await admitted(checks, choice=["yes", "no"])
    assert outputs.choice is None
    assert outputs.grammar == 'root ::= "yes" | "no"'


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ({"json": {"$ref": "#"}}, "no token of this model can start"),
        ({"grammar": "root ::= "}, "cannot be used"),
        ({"grammar": "root ::= (" + "(" * 5000}, "cannot be used"),
        ({"regex": "(((("}, "cannot be used"),
        ({"structural_tag": "{}"}, "cannot be used"),
        ({"json": "{"}, "cannot be used"),
        ({"json_object": False}, "json_object"),
    ],
)
async def test_constraint_that_cannot_be_met_is_refused_with_a_sentence(
    checks: GrammarChecks, constraint: dict[str, Any], says: str
) -> None:
    with pytest.raises(VLLMValidationError, match=says.replace("(", r"\(")):
        await admitted(checks, **constraint)


async def test_request_while_it_is_read_compiles_no_constraint(checks: GrammarChecks) -> None:
    form = {"type": "json_schema", "json_schema": hard(1)}
    start = time.monotonic()
    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": "a"}],
        response_format={"type": "structural_tag", "format": form},  # type: ignore[arg-type]
    )
    assert time.monotonic() - start < 1
    params = request.to_sampling_params(10, {})
    with pytest.raises(VLLMValidationError, match="more than 5 s of processor time"):
        await checks.admit(params)


async def test_constraint_that_takes_too_long_is_refused_and_remembered(
    checks: GrammarChecks,
) -> None:
    await admitted(checks, regex="warm")
    start = time.monotonic()
    with pytest.raises(VLLMValidationError, match="more than 5 s of processor time"):
        await admitted(checks, json=hard(0))
    assert time.monotonic() - start < COMPILE_CPU_S + 5
    start = time.monotonic()
    with pytest.raises(VLLMValidationError, match="more than 5 s of processor time"):
        await admitted(checks, json=hard(0))
    assert time.monotonic() - start < 1
    await admitted(checks, regex="next")
