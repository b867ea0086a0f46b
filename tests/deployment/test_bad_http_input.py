"""Invalid requests get clear errors and no 500, leak nothing, and leave the endpoint serving."""

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.deployment import Up, manifest, running

pytestmark = pytest.mark.integration

KEY = "a-good-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}
ORIGIN = "https://app.example"
NUM_FUZZED = 10_000
FIELDS = [
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "user",
    "logit_bias",
    "echo",
    "suffix",
    "best_of",
    "tools",
    "tool_choice",
    "response_format",
    "ignore_eos",
    "min_tokens",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "stop_token_ids",
    "guided_json",
    "priority",
    "vllm_xargs",
    "max_completion_tokens",
    "chat_template",
    "add_generation_prompt",
    "truncate_prompt_tokens",
    "extra",
]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("bad")
    keys = folder / "keys"
    keys.write_text(f"another-key\n{KEY}\n")
    document = manifest(
        instances=2,
        model={"source": "tiny", "servedName": "tiny-llama", "maxModelLen": 512},
        scheduling={"strategy": "unified", "dropLate": True},
        slo={"ttft": "200ms", "tpot": "100ms"},
        api={"allowedOrigins": [ORIGIN]},
    )
    with running(folder, document, "--api-keys", str(keys)) as deployment:
        yield deployment
        assert KEY not in deployment.log


def post(up: Up, path: str, **kwargs: Any) -> httpx.Response:
    return httpx.post(up.endpoint + path, timeout=30, **{"headers": HEADERS, **kwargs})


def completion(**changes: Any) -> dict[str, Any]:
    body = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 5, **changes}
    return {name: value for name, value in body.items() if value is not None}


def assert_serves(up: Up) -> None:
    response = post(up, "/v1/completions", json=completion(ignore_eos=True))
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/completions", completion(model="other"), 404, "other"),
        ("/v1/chat/completions", completion(messages=[], model="other"), 404, "other"),
        ("/v1/completions", completion(prompt=None), 400, "prompt"),
        ("/v1/completions", completion(prompt=5), 400, "prompt"),
        ("/v1/completions", completion(prompt=[[[1]]]), 400, "prompt"),
        ("/v1/completions", completion(prompt=[1] * 3000), 400, "512"),
        ("/v1/completions", completion(prompt="word " * 9000), 400, "512"),
        ("/v1/completions", completion(prompt=[99999]), 400, "vocabulary"),
        ("/v1/completions", completion(max_tokens=0), 400, "max_tokens"),
        ("/v1/completions", completion(max_tokens="many"), 400, "max_tokens"),
        ("/v1/completions", completion(temperature=-1), 400, "temperature"),
        ("/v1/completions", completion(top_p=2), 400, "top_p"),
        ("/v1/completions", completion(n=100000), 400, "n"),
        ("/v1/completions", completion(stop=[""]), 400, "stop"),
        ("/v1/completions", completion(prompt_logprobs=999), 400, "logprobs"),
        ("/v1/chat/completions", completion(messages="hi"), 400, "messages"),
        ("/v1/chat/completions", completion(messages=[{"content": "x"}]), 400, "role"),
        ("/tokenize", {"model": "tiny-llama"}, 400, ""),
    ],
)
def test_bad_body_gets_an_error_that_says_what(
    up: Up, path: str, body: dict[str, Any], status: int, says: str
) -> None:
    response = post(up, path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert says in error["message"]
    assert error["code"] == status and error["type"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{} trailing"])
def test_body_that_is_no_json_object_gets_400(up: Up, body: bytes) -> None:
    headers = {**HEADERS, "Content-Type": "application/json"}
    response = post(up, "/v1/completions", content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_body_that_is_too_large_gets_413(up: Up) -> None:
    body = json.dumps(completion(prompt="x" * (9 << 20))).encode()
    headers = {**HEADERS, "Content-Type": "application/json"}

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    for content in (body, chunks()):
        response = post(up, "/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
        assert "larger" in response.json()["error"]["message"]
    assert_serves(up)


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer wrong", "Basic abc", KEY, f"bearer{KEY}"])
def test_request_without_a_valid_key_gets_401(up: Up, value: str) -> None:
    for path in ("/v1/completions", "/tokenize"):
        response = post(up, path, json=completion(), headers={"Authorization": value})
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "AuthenticationError"
    assert httpx.get(up.endpoint + "/v1/models").status_code == 401
    assert httpx.get(up.endpoint + "/health").status_code == 200


def test_browser_can_read_that_its_key_is_wrong(up: Up) -> None:
    headers = {"Origin": ORIGIN, "Authorization": "Bearer wrong"}
    refused = post(up, "/v1/completions", json=completion(), headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    allowed = httpx.options(up.endpoint + "/v1/completions", headers=preflight)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN


def status_with(up: Up, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(up.endpoint + "/v1/models", headers=headers).status_code


def test_keys_are_those_that_the_file_holds_now(up: Up) -> None:
    assert [status_with(up, key) for key in (KEY, "another-key", "fresh-key")] == [200, 200, 401]
    file = up.folder / "keys"
    file.write_text(f"{KEY} # this one stays\nfresh-key\n")
    # So often that every replica is asked.
    keys = ["fresh-key", "another-key"] * 8
    up.wait_for(lambda: [status_with(up, key) for key in keys] == [200, 401] * 8, 20)
    file.write_text("")
    time.sleep(3)
    assert {status_with(up, KEY) for _ in range(8)} == {200}
    assert httpx.get(up.endpoint + "/v1/models").status_code == 401


def test_unknown_path_gets_404_and_unknown_method_405(up: Up) -> None:
    nothing = post(up, "/v1/nothing", json={})
    get = httpx.get(up.endpoint + "/v1/completions", headers=HEADERS)
    for response, status in ((nothing, 404), (get, 405)):
        assert response.status_code == response.json()["error"]["code"] == status


def test_request_without_a_key_computes_and_reveals_nothing(up: Up) -> None:
    ended = up.metrics()["macroserve_requests_total"]
    body = {"model": "tiny-llama", "query": "a", "items": ["b"], "label_token_ids": [5]}
    for path in ("/generative_scoring", "/v1/chat/completions/batch", "/v1/messages"):
        assert post(up, path, json=body, headers={}).status_code == 401
    for path in ("/metrics", "/macroserve/metrics", "/admin/v1/report", "//v1/models"):
        assert httpx.get(up.endpoint + path).status_code == 404
    assert up.metrics()["macroserve_requests_total"] == ended


def test_anthropic_clients_send_their_key_and_get_their_errors(up: Up) -> None:
    body = {"model": "other", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    for headers, status in (({"x-api-key": KEY}, 404), ({"x-api-key": "wrong"}, 401)):
        response = post(up, "/v1/messages", json=body, headers=headers)
        assert response.status_code == status
        assert response.json()["type"] == "error" and response.json()["error"]["message"]


def test_json_that_is_nested_too_deeply_gets_400_in_openai_shape(up: Up) -> None:
    headers = {**HEADERS, "Content-Type": "application/json"}
    response = post(up, "/v1/completions", content=b"[" * 100_000, headers=headers)
    assert response.status_code == response.json()["error"]["code"] == 400


def test_overload_gets_429_with_retry_after(up: Up) -> None:
    """Long prompts, many more than the queues can prefill within their target."""

    async def flood() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=60, headers=HEADERS) as http:
            tasks = []
            for number in range(600):
                # No prefix cache has the prompt of another one.
                body = completion(
                    prompt=[9] * 500, max_tokens=2, cache_salt=str(number), stream=number % 2 == 0
                )
                url = up.endpoint + "/v1/completions"
                tasks.append(asyncio.create_task(http.post(url, json=body)))
                await asyncio.sleep(0.002)
            return await asyncio.gather(*tasks)

    responses = asyncio.run(flood())
    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) == {200, 429}, statuses
    assert not any("error" in response.text for response in responses if response.is_success)
    refused = next(response for response in responses if response.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == 429
    up.wait_for(lambda: post(up, "/v1/completions", json=completion()).status_code == 200)


def test_half_closed_and_silent_sockets_leak_nothing(up: Up) -> None:
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: "
    )
    body = json.dumps(completion(max_tokens=450, stream=True, ignore_eos=True)).encode()
    sockets = []
    for cut in (0, 10, len(head), len(head) + 30):
        for _ in range(10):
            sock = socket.create_connection(("127.0.0.1", up.port))
            sock.sendall((head + f"{len(body)}\r\n\r\n").encode()[:cut])
            sockets.append(sock)
    for _ in range(10):
        # A whole request, then nothing is ever read of the answer.
        sock = socket.create_connection(("127.0.0.1", up.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.sendall((head + f"{len(body)}\r\n\r\n").encode() + body)
        sock.shutdown(socket.SHUT_WR)
        sockets.append(sock)
    assert_serves(up)
    for sock in sockets:
        sock.close()
    up.wait_for(lambda: up.metrics()["macroserve_requests_in_flight"] == 0)
    assert_all_given_back(up)


def assert_all_given_back(up: Up) -> None:
    def given_back() -> bool:
        statuses = [instance["status"] for instance in up.instances().values()]
        return all(
            s["free_blocks"] == s["num_blocks"] and s["num_running"] + s["num_waiting"] == 0
            for s in statuses
        )

    up.wait_for(given_back)


def fuzzed(rnd: random.Random) -> tuple[str, bytes]:
    """A good body with a few entries changed, or bytes changed."""
    chat = rnd.random() < 0.5
    body = completion(stream=rnd.random() < 0.3)
    if chat:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    for _ in range(rnd.randrange(1, 4)):
        body[rnd.choice(FIELDS)] = value(rnd, 0)
    text = json.dumps(body).encode()
    if rnd.random() < 0.2:
        data = bytearray(text)
        for _ in range(rnd.randrange(1, 4)):
            data[rnd.randrange(len(data))] = rnd.randrange(256)
        text = bytes(data)
    return ("/v1/chat/completions" if chat else "/v1/completions"), text


def value(rnd: random.Random, depth: int) -> Any:
    simple = [None, True, False, 0, 1, -1, 2, 1e308, -1e-9, 2**31, 2**63, -(2**63), 10**30, ""]
    simple += ["a", "\x00", "é" * 20, "</s>", "auto", "json_object", [], {}, [[]], "x" * 2000]
    if depth > 2 or rnd.random() < 0.6:
        return rnd.choice(simple)
    if rnd.random() < 0.5:
        return [value(rnd, depth + 1) for _ in range(rnd.randrange(4))]
    names = ["role", "content", "type", "function", "name", "text", "0", "-1", "include_usage"]
    return {rnd.choice(names): value(rnd, depth + 1) for _ in range(rnd.randrange(4))}


def test_ten_thousand_fuzzed_bodies_cause_no_500(up: Up) -> None:
    async def run() -> list[tuple[int, bytes, str]]:
        rnd = random.Random(11)
        work = [fuzzed(rnd) for _ in range(NUM_FUZZED)]
        queue = iter(work)
        results = []
        headers = {**HEADERS, "Content-Type": "application/json"}
        async with httpx.AsyncClient(timeout=60, headers=headers) as http:

            async def worker() -> None:
                for path, body in queue:
                    response = await http.post(up.endpoint + path, content=body)
                    results.append((response.status_code, body, response.text))

            await asyncio.gather(*(worker() for _ in range(16)))
        return results

    results = asyncio.run(run())
    assert len(results) == NUM_FUZZED
    faults = [(s, body[:300], text[:300]) for s, body, text in results if s >= 500]
    assert not faults, f"{len(faults)}: {faults[:5]}"
    statuses = Counter(status for status, _, _ in results)
    assert {200, 400} <= set(statuses), statuses
    assert_serves(up)
    up.wait_for(lambda: up.metrics()["macroserve_requests_in_flight"] == 0)
    assert_all_given_back(up)
