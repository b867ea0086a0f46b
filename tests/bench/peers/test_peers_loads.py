"""Loads of the comparison: equal for every deployment, within the model's length."""

import json
from pathlib import Path

import pytest
from aiohttp import web

from macroserve.bench.peers.chats import NUM_TURNS, ChatLoad
from macroserve.bench.peers.loads import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, RequestLoad, loads
from macroserve.bench.peers.prefixes import NUM_PREFIXES, shared_prefixes
from macroserve.bench.serve.client import LoadClient, Target
from macroserve.workload.arrivals import BLOCK_TOKENS

MODEL_LENGTH = 2048


def request_load(name: str) -> RequestLoad:
    found = loads(None, None)[name]
    assert isinstance(found, RequestLoad)
    return found


@pytest.mark.parametrize("name", ["azure_conv", "prefixes"])
def test_requests_come_at_the_rate_and_fit_the_model(name: str) -> None:
    planned = request_load(name).plan(rate=20.0, duration_s=200.0, seed=3)
    assert len(planned) == pytest.approx(4000, rel=0.06)
    assert [each.at_s for each in planned] == sorted(each.at_s for each in planned)
    assert planned[-1].at_s < 200.0
    assert MAX_PROMPT_TOKENS + MAX_OUTPUT_TOKENS <= MODEL_LENGTH
    assert max(each.num_prompt_tokens for each in planned) <= MAX_PROMPT_TOKENS
    assert max(each.num_output_tokens for each in planned) <= MAX_OUTPUT_TOKENS


def test_azures_lengths_are_a_scaled_down_trace() -> None:
    planned = request_load("azure_conv").plan(rate=20.0, duration_s=200.0, seed=3)
    mean = sum(each.num_prompt_tokens for each in planned) / len(planned)
    assert mean == pytest.approx(0.15 * 1154.7, rel=0.05)


@pytest.mark.parametrize("name", ["azure_conv", "chats", "prefixes"])
def test_plans_are_equal_only_with_equal_seeds(name: str) -> None:
    load = loads(None, None)[name]
    assert isinstance(load, RequestLoad | ChatLoad)
    plan = load.plan(5.0, 20.0, seed=1)
    assert plan == loads(None, None)[name].plan(5.0, 20.0, seed=1)  # type: ignore[attr-defined]
    assert plan != load.plan(5.0, 20.0, seed=2)


def test_traces_give_lengths_and_shared_blocks(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,2000,400\n")
    mooncake = tmp_path / "mooncake.jsonl"
    row = {"timestamp": 0, "input_length": 1000, "output_length": 64, "hash_ids": [7, 8]}
    mooncake.write_text(json.dumps(row) + "\n")
    found = loads(azure, mooncake)
    [request, *_] = found["azure_conv"].plan(10.0, 5.0, 0)  # type: ignore[attr-defined]
    assert (request.num_prompt_tokens, request.num_output_tokens) == (300, 60)
    [request, *_] = found["prefixes"].plan(10.0, 5.0, 0)  # type: ignore[attr-defined]
    assert (request.num_prompt_tokens, request.num_output_tokens) == (62, 4)
    assert request.block_ids == (7, 8)


def test_prefix_trace_without_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1000, "output_length": 64}\n')
    with pytest.raises(ValueError, match="has no hash_ids"):
        loads(None, path)


def test_synthesized_prefixes_are_shared_and_questions_are_not() -> None:
    rows = shared_prefixes()
    first = [row.block_ids[0] for row in rows]
    last = [row.block_ids[-1] for row in rows]
    assert len(set(first)) == NUM_PREFIXES
    assert len(set(last)) == len(rows)
    assert all(row.num_prompt_tokens == BLOCK_TOKENS * len(row.block_ids) for row in rows)
    counts = sorted(map(first.count, set(first)), reverse=True)
    assert counts[0] > 5 * counts[-1]


def test_chats_come_at_the_rate_from_the_first_second_on() -> None:
    chats = ChatLoad().plan(rate=20.0, duration_s=100.0, seed=5)
    times = [turn.at_s for chat in chats for turn in chat.turns]
    assert all(0 <= at_s < 100.0 for at_s in times)
    for start_s in (0.0, 50.0, 90.0):
        within = sum(start_s <= at_s < start_s + 10.0 for at_s in times)
        assert within == pytest.approx(200, rel=0.35)
    assert len(times) == pytest.approx(2000, rel=0.1)
    assert any(chat.history for chat in chats)
    for chat in chats:
        assert len(chat.turns) + len(chat.history) // 2 <= NUM_TURNS[1]


class Talker:
    """The talker answers each chat request with words of its own and keeps the messages."""

    def __init__(self) -> None:
        self.conversations: list[list[dict[str, str]]] = []
        self.failing = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.conversations.append(body["messages"])
        if self.failing:
            return web.json_response({"error": {"message": "no"}}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        number = len(self.conversations)
        for text in (f"answer {number}", " goes on"):
            chunk = {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        usage = {"prompt_tokens": 7, "completion_tokens": body["max_tokens"]}
        for chunk in ({"choices": [], "usage": usage}, "[DONE]"):
            text = chunk if isinstance(chunk, str) else json.dumps(chunk)
            await response.write(f"data: {text}\n\n".encode())
        return response


@pytest.fixture
async def talker(aiohttp_free_port: int):
    talker = Talker()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", talker.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", aiohttp_free_port).start()
    yield talker, f"http://127.0.0.1:{aiohttp_free_port}"
    await runner.cleanup()


@pytest.fixture
def aiohttp_free_port() -> int:
    from macroserve.bench.ports import free_port

    return free_port()


@pytest.fixture
def quick_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macroserve.bench.peers.chats.GAP_S", (0.01, 0.02))


async def test_each_turn_repeats_the_chat_with_the_real_answers(talker, quick_chats) -> None:
    server, url = talker
    async with LoadClient(Target(url, 5.0)) as client:
        records = await ChatLoad().run(client, "m", rate=100.0, duration_s=0.3, seed=1)
    assert len(records) == len(server.conversations)
    assert all(record.failure is None for record in records)
    assert [r.scheduled_s for r in records] == sorted(r.scheduled_s for r in records)
    longer = [c for c in server.conversations if any("goes on" in m["content"] for m in c)]
    assert longer
    for messages in server.conversations:
        roles = [message["role"] for message in messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        # The request before, with the answer that it got, is this one's start.
        if len(messages) > 2 and "goes on" in messages[-2]["content"]:
            number = int(messages[-2]["content"].split()[1])
            assert server.conversations[number - 1] == messages[:-2]


async def test_chat_goes_on_after_a_failed_turn(talker, quick_chats) -> None:
    server, url = talker
    server.failing = True
    async with LoadClient(Target(url, 5.0)) as client:
        records = await ChatLoad().run(client, "m", rate=100.0, duration_s=0.2, seed=1)
    planned = ChatLoad().plan(100.0, 0.2, 1)
    assert len(records) == sum(len(chat.turns) for chat in planned)
    assert all(record.failure is not None for record in records)
