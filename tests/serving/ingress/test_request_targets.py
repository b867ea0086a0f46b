"""A request gets its class from its key, its header or its model, in this order."""

import asyncio
from dataclasses import replace

import pytest
from starlette.datastructures import Headers
from support.slo_classes import BATCH, INTERACTIVE, default_class

from macroserve.core.request import Slo
from macroserve.engine.tokens import RefusedError
from macroserve.serving.ingress.request_targets import (
    MAX_TARGET_MS,
    RequestTargets,
    current_class,
    in_class,
)

DEFAULT = default_class()
TARGETS = RequestTargets(DEFAULT, (INTERACTIVE, BATCH), takes_numbers=True)
STRICT = RequestTargets(DEFAULT, (INTERACTIVE, BATCH), takes_numbers=False)


@pytest.mark.parametrize(
    ("header", "key_class", "model", "expected"),
    [
        (None, None, None, "default"),
        (None, None, "llama", "default"),
        (None, None, "llama-chat", "interactive"),
        (None, None, ["llama-chat"], "default"),
        (None, "batch", "llama-chat", "batch"),
        ("batch", None, "llama-chat", "batch"),
        (" batch ", None, None, "batch"),
        ("default", None, "llama-chat", "default"),
        ("batch", "batch", None, "batch"),
    ],
)
def test_class_is_that_of_the_key_else_the_header_else_the_model(
    header: str | None, key_class: str | None, model: object, expected: str
) -> None:
    headers = Headers({"x-slo-class": header} if header else {})
    for targets in (TARGETS, STRICT):
        assert targets.choose(headers, key_class, model).name == expected


def test_numbers_of_a_request_replace_those_of_its_class() -> None:
    headers = Headers({"x-slo-class": "batch", "x-slo-ttft-ms": "1500", "x-slo-tpot-ms": "0.5"})
    assert TARGETS.choose(headers, None, None) == replace(BATCH, slo=Slo(1.5, 0.0005))
    one = Headers({"x-slo-tpot-ms": f"{MAX_TARGET_MS:.0f}"})
    assert TARGETS.choose(one, None, None) == replace(DEFAULT, slo=Slo(5.0, 3600.0))


@pytest.mark.parametrize(
    ("headers", "key_class", "status", "says"),
    [
        ([("x-slo-class", "gold")], None, 400, "known are: default, interactive, batch"),
        ([("x-slo-class", "")], None, 400, "not an SLO class"),
        ([("x-slo-class", "Batch")], None, 400, "not an SLO class"),
        ([("x-slo-class", "gold")], "batch", 400, "not an SLO class"),
        ([("x-slo-class", "interactive")], "batch", 403, "have the SLO class batch"),
        ([("x-slo-class", "default")], "batch", 403, "have the SLO class batch"),
        ([("x-slo-class", "batch")] * 2, None, 400, "given 2 times"),
        ([("x-slo-ttft-ms", "0")], None, 400, "must be a number of milliseconds"),
        ([("x-slo-ttft-ms", "-5")], None, 400, "must be a number of milliseconds"),
        ([("x-slo-tpot-ms", "nan")], None, 400, "must be a number of milliseconds"),
        ([("x-slo-tpot-ms", "1e3")], None, 400, "must be a number of milliseconds"),
        ([("x-slo-tpot-ms", "")], None, 400, "must be a number of milliseconds"),
        ([("x-slo-tpot-ms", "\u0664")], None, 400, "must be a number of milliseconds"),
        ([("x-slo-tpot-ms", "3600001")], None, 400, "up to 3600000"),
        ([("x-slo-tpot-ms", "9" * 1000)], None, 400, "up to 3600000"),
        ([("x-slo-ttft-ms", "5")] * 2, None, 400, "given 2 times"),
    ],
)
def test_head_that_cannot_be_taken_is_refused_in_a_sentence(
    headers: list[tuple[str, str]], key_class: str | None, status: int, says: str
) -> None:
    raw = [(name.encode(), value.encode("utf-8")) for name, value in headers]
    with pytest.raises(RefusedError) as refused:
        TARGETS.choose(Headers(raw=raw), key_class, None)
    assert refused.value.status == status
    assert says in refused.value.message


def test_numbers_are_refused_where_the_manifest_does_not_take_them() -> None:
    with pytest.raises(RefusedError, match=r"spec\.slo\.allowRequestTargets is false") as refused:
        STRICT.choose(Headers({"x-slo-ttft-ms": "100"}), None, None)
    assert refused.value.status == 400


async def test_task_that_a_request_starts_is_in_its_class() -> None:
    async def found() -> str:
        return current_class(DEFAULT).name

    with in_class(BATCH):
        task = asyncio.create_task(found())
        with in_class(INTERACTIVE):
            assert await found() == "interactive"
        assert await found() == "batch"
    assert await task == "batch"
    assert await found() == "default"
