"""The quickstart: three real vLLM instances, used as a person would."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml
from openai import AsyncOpenAI, OpenAI
from support.deployment import Up, running

from macroserve_lab.bench.hostile.fuzz import fuzz

pytestmark = pytest.mark.integration

MODEL = "tiny-llama"
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True, "return_token_ids": True}}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    document = yaml.safe_load(Path("manifests/quickstart.yaml").read_text())
    document["metadata"]["name"] = "test"
    document["spec"]["scheduling"]["maxLateWait"] = "10m"  # so that a slow machine serves all
    with running(tmp_path_factory.mktemp("quickstart"), document) as deployment:
        yield deployment


@pytest.fixture
def client(up: Up) -> OpenAI:
    return OpenAI(base_url=up.endpoint + "/v1", api_key="none", max_retries=0)


def prompts(count: int) -> list[list[int]]:
    return [[(17 * i + 3 * j) % 1900 + 50 for j in range(20 + 7 * i)] for i in range(count)]


async def token_streams(up: Up, count: int, max_tokens: int) -> list[list[int]]:
    """Greedy tokens of ``count`` streams at once."""
    client = AsyncOpenAI(base_url=up.endpoint + "/v1", api_key="none", max_retries=0)

    async def one(prompt: list[int]) -> list[int]:
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=max_tokens, stream=True, **GREEDY
        )
        tokens: list[int] = []
        async for chunk in stream:
            tokens += chunk.choices[0].model_extra["token_ids"] or []
        return tokens

    async with client:
        return await asyncio.gather(*(one(prompt) for prompt in prompts(count)))


def all_given_back(up: Up) -> bool:
    statuses = [instance["status"] for instance in up.instances().values()]
    return all(
        s["free_blocks"] == s["num_blocks"] and s["num_running"] + s["num_waiting"] == 0
        for s in statuses
    )


def decoding(up: Up) -> int:
    return sum(i["status"]["num_decoding"] for i in up.instances().values())


def test_printed_curl_line_is_complete(up: Up) -> None:
    assert f"curl -N {up.endpoint}/v1/chat/completions" in up.log
    assert any("Ready." in line for line in up.lines)


def test_chat_is_streamed(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 5
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 16


def test_completion_with_all_options_returns_choices_logprobs_and_usage(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Once upon", n=2, max_tokens=8, logprobs=3, temperature=1.0
    )
    assert len(answer.choices) == 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.top_logprobs is not None
    assert all(3 <= len(top) <= 4 for top in logprobs.top_logprobs)
    full = client.completions.create(model=MODEL, prompt="Once", max_tokens=30, **GREEDY)
    text = full.choices[0].text
    stop = text[10:13]
    cut = client.completions.create(model=MODEL, prompt="Once", max_tokens=30, stop=stop, **GREEDY)
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_of_a_forced_token_come_with_the_likeliest_ones(client: OpenAI) -> None:
    free, forced = (
        client.completions.create(
            model=MODEL, prompt="Hello", max_tokens=1, logprobs=2, temperature=0, extra_body=body
        )
        .choices[0]
        .logprobs
        for body in ({}, {"allowed_token_ids": [10]})
    )
    assert free and forced and free.top_logprobs and forced.top_logprobs
    assert len(free.top_logprobs[0]) == 2
    assert free.top_logprobs[0].items() < forced.top_logprobs[0].items()
    assert len(forced.top_logprobs[0]) == 3


@pytest.mark.parametrize("labels", [[5, 6], list(range(100, 115))])
def test_scoring_gives_the_probabilities_of_all_labels(up: Up, labels: list[int]) -> None:
    body = {"model": MODEL, "query": "a", "items": ["b", "c"], "label_token_ids": labels}
    answer = httpx.post(up.endpoint + "/generative_scoring", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert all(0 < item["score"] < 1 for item in answer.json()["data"])


def test_structured_answer_keeps_to_its_schema(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        max_tokens=1000,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {**schema, "additionalProperties": False}},
        },
    )
    text = answer.choices[0].message.content
    assert text is not None and '"a"' in text and ("true" in text or "false" in text)


def test_models_and_tokenize_routes_answer(up: Up, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    body = {"model": MODEL, "prompt": "Hello there"}
    tokens = httpx.post(up.endpoint + "/tokenize", json=body).json()["tokens"]
    body = {"model": MODEL, "tokens": tokens}
    assert httpx.post(up.endpoint + "/detokenize", json=body).json()["prompt"] == "Hello there"


def test_errors_have_their_openai_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=MODEL, prompt=[1] * 2500)


def test_metrics_pass_through_from_the_instances(up: Up) -> None:
    text = httpx.get(up.state.private + "/metrics", timeout=10).text
    for name in up.instances():
        assert f'instance="{name}"' in text
    assert "vllm:num_requests_running" in text and "vllm:kv_cache_usage_perc" in text
    assert "macroserve_ttft_seconds_bucket" in text


def test_client_that_leaves_frees_its_blocks_within_an_iteration(up: Up) -> None:
    body = {"model": MODEL, "prompt": [9] * 100, "max_tokens": 1800, "ignore_eos": True}
    with httpx.stream(
        "POST", up.endpoint + "/v1/completions", json={**body, "stream": True}, timeout=30
    ) as response:
        chunks = response.iter_raw()
        next(chunks)
        up.wait_for(lambda: not all_given_back(up))
    # 1,800 tokens take many times as long, on any machine.
    up.wait_for(lambda: all_given_back(up), timeout_s=3)


def test_phases_move_under_load(up: Up) -> None:
    seen: set[str] = set()

    async def run() -> None:
        load = asyncio.create_task(token_streams(up, 24, 60))
        while not load.done():
            report = await asyncio.to_thread(up.instances)
            seen.update(instance["status"]["phase"] for instance in report.values())
        assert all(len(tokens) == 60 for tokens in await load)

    asyncio.run(run())
    assert {"idle", "decode"} < seen and seen & {"prefill", "mixed"}
    up.wait_for(lambda: all_given_back(up))


def busiest(up: Up) -> int:
    """Process id of the instance that decodes most streams now."""
    instance = max(up.instances().values(), key=lambda i: i["status"]["num_decoding"])
    port = int(instance["address"].rsplit(":", 1)[1])
    return next(
        process.pid
        for process in up.processes("macroserve.serving.instance.token_process")
        if any(c.laddr.port == port for c in process.net_connections() if c.status == "LISTEN")
    )


async def while_decoding(up: Up, number: signal.Signals) -> tuple[list[list[int]], int]:
    """Twelve streams of which the busiest instance gets a signal; their tokens, and the process
    that got it."""
    streams = asyncio.create_task(token_streams(up, 12, 120))
    await asyncio.to_thread(up.wait_for, lambda: decoding(up) > 6)
    pid = busiest(up)
    os.kill(pid, number)
    return await streams, pid


def test_killed_instance_changes_no_token(up: Up) -> None:
    expected = asyncio.run(token_streams(up, 12, 120))
    before = {instance["address"] for instance in up.instances().values()}
    tokens, _ = asyncio.run(while_decoding(up, signal.SIGKILL))
    assert tokens == expected
    assert up.metrics()["macroserve_reroutes_total"] > 0
    up.wait_for(lambda: len(up.instances()) == 3, timeout_s=180)
    after = {instance["address"] for instance in up.instances().values()}
    assert len(after - before) == 1
    up.wait_for(lambda: all_given_back(up))


def test_hung_instance_changes_no_token(up: Up) -> None:
    """Stopped, not dead: its connections stay open and say nothing."""
    expected = asyncio.run(token_streams(up, 12, 120))
    rerouted = up.metrics()["macroserve_reroutes_total"]
    tokens, pid = asyncio.run(while_decoding(up, signal.SIGSTOP))
    up.wait_for(lambda: not psutil.pid_exists(pid))
    assert tokens == expected
    assert up.metrics()["macroserve_reroutes_total"] > rerouted
    up.wait_for(lambda: len(up.instances()) == 3, timeout_s=180)


def test_engine_that_hangs_without_work_is_replaced(up: Up) -> None:
    up.wait_for(lambda: all_given_back(up))
    engine, num_lines = busiest(up), len(up.lines)
    os.kill(engine, signal.SIGSTOP)
    up.wait_for_line(r"its engine has sent nothing for \d+ s", after=num_lines)
    up.wait_for(lambda: not psutil.pid_exists(engine))
    up.wait_for(lambda: len(up.instances()) == 3, timeout_s=180)
    assert all(len(tokens) == 20 for tokens in asyncio.run(token_streams(up, 6, 20)))


def hard_schema(number: int) -> dict[str, Any]:
    """Fewer patterns than are allowed, and minutes to compile."""
    pattern = f"(a{{1,{1400 + number}}}){{1,1400}}"
    names = (f"p{number}_{i}" for i in range(250))
    return {
        "type": "object",
        "properties": {name: {"type": "string", "pattern": pattern} for name in names},
    }


async def test_hard_schemas_end_with_400_and_hold_no_stream(up: Up) -> None:
    gaps: list[float] = []

    async def bystander(http: httpx.AsyncClient) -> None:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 150, "ignore_eos": True}
        last = time.monotonic()
        async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
            assert stream.status_code == 200
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()

    async def hard(http: httpx.AsyncClient, number: int) -> tuple[httpx.Response, float]:
        start = time.monotonic()
        constraint = {"json": hard_schema(number)}
        body = {"model": MODEL, "prompt": "a", "structured_outputs": constraint}
        return await http.post("/v1/completions", json=body), time.monotonic() - start

    before = sorted(up.instances())
    async with httpx.AsyncClient(base_url=up.endpoint, timeout=120) as http:
        bystanders = [asyncio.create_task(bystander(http)) for _ in range(2)]
        answers = await asyncio.gather(*(hard(http, number) for number in range(3)))
        await asyncio.gather(*bystanders)
        again, took_s = await hard(http, 0)
    for response, _ in answers:
        assert response.status_code == 400, response.text
        assert "more than 5 s of processor time" in response.json()["error"]["message"]
    # What was found is remembered, by the replica that found it.
    assert again.status_code == 400 and took_s < 20
    # Compiled on a loop, each would hold every stream for its whole time.
    assert sum(gap > 4 for gap in gaps[1:]) == 0, sorted(gaps)[-5:]
    assert sorted(up.instances()) == before


async def test_fuzzed_bodies_get_client_errors_only(up: Up) -> None:
    result = await fuzz(up.endpoint, MODEL, num_bodies=1000, seed=7)
    assert result.num_5xx == 0, (result.statuses, result.examples[:5])
    assert result.statuses.keys() >= {200, 400}
    up.wait_for(lambda: all_given_back(up))
