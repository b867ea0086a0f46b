"""Loads of the comparison: equal for every deployment, within the model's length."""

import json
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean

import pytest
from aiohttp import web
from tokenizers import Tokenizer

from macroserve.bench.serve.client import LoadClient, Target
from macroserve.local.tiny_model import ensure_tiny_model
from macroserve.workload.arrivals import BLOCK_TOKENS, Arrival
from macroserve_lab.bench.peers.chats import (
    CHATS,
    LONG_CHATS,
    WHOLE_CHATS,
    WHOLE_LONG_CHATS,
    ChatLoad,
)
from macroserve_lab.bench.peers.loads import (
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    RequestLoad,
    loads,
)
from macroserve_lab.bench.peers.prefixes import NUM_PREFIXES, shared_prefixes
from macroserve_lab.bench.peers.rows import RowLoad
from macroserve_lab.bench.peers.traces import Traces

MODEL_LENGTH = 2048
SYNTHESIZED = Traces()


def request_load(name: str, traces: Traces = SYNTHESIZED) -> RequestLoad:
    found = loads(traces)[name]
    assert isinstance(found, RequestLoad)
    return found


@pytest.mark.parametrize("name", ["azure_conv", "azure_code", "prefixes"])
def test_requests_come_at_the_rate_and_fit_the_model(name: str) -> None:
    planned = request_load(name).plan(rate=20.0, duration_s=200.0, seed=3)
    assert len(planned) == pytest.approx(4000, rel=0.06)
    assert [each.at_s for each in planned] == sorted(each.at_s for each in planned)
    assert planned[-1].at_s < 200.0
    assert MAX_PROMPT_TOKENS + MAX_OUTPUT_TOKENS <= MODEL_LENGTH
    assert max(each.num_prompt_tokens for each in planned) <= MAX_PROMPT_TOKENS
    assert max(each.num_output_tokens for each in planned) <= MAX_OUTPUT_TOKENS


@pytest.mark.parametrize(
    ("name", "mean_prompt", "mean_output"),
    [("azure_conv", 0.15 * 1154.7, 0.15 * 211.1), ("azure_code", 0.24 * 2047.8, 0.24 * 27.9)],
)
def test_azures_lengths_are_a_scaled_down_trace(
    name: str, mean_prompt: float, mean_output: float
) -> None:
    planned = request_load(name).plan(rate=20.0, duration_s=200.0, seed=3)
    assert mean(each.num_prompt_tokens for each in planned) == pytest.approx(mean_prompt, rel=0.05)
    assert mean(each.num_output_tokens for each in planned) == pytest.approx(mean_output, rel=0.1)


def test_longest_prompt_of_azures_code_is_not_capped() -> None:
    planned = request_load("azure_code").plan(rate=20.0, duration_s=200.0, seed=3)
    assert max(each.num_prompt_tokens for each in planned) == round(0.24 * 7437) < MAX_PROMPT_TOKENS


@pytest.mark.parametrize("name", ["azure_conv", "azure_code", "chats", "long_chats", "prefixes"])
def test_plans_are_equal_only_with_equal_seeds(name: str) -> None:
    load, again = loads(SYNTHESIZED)[name], loads(SYNTHESIZED)[name]
    assert isinstance(load, RequestLoad | ChatLoad)
    assert isinstance(again, RequestLoad | ChatLoad)
    assert load.plan(5.0, 20.0, seed=1) == again.plan(5.0, 20.0, seed=1)
    assert load.plan(5.0, 20.0, seed=1) != load.plan(5.0, 20.0, seed=2)


def test_rows_come_in_their_order_from_a_random_one_on_and_again_after_the_last() -> None:
    rows = [Arrival(0.0, 10 * number, number) for number in range(1, 4)]
    load, firsts = RowLoad(rate=5.0, cv=1.0, rows=rows), set[int]()
    for seed in range(20):
        numbers = [each.num_output_tokens for each in islice(load.arrivals(seed), 7)]
        assert all(after == before % 3 + 1 for before, after in pairwise(numbers))
        firsts.add(numbers[0])
    assert firsts == {1, 2, 3}


def test_traces_give_lengths_and_shared_blocks(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,2000,400\n")
    code = tmp_path / "code.csv"
    code.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1000,100\n")
    mooncake = tmp_path / "mooncake.jsonl"
    row = {"timestamp": 0, "input_length": 1000, "output_length": 64, "hash_ids": [7, 8]}
    mooncake.write_text(json.dumps(row) + "\n")
    traces = Traces(azure_conv=azure, azure_code=code, prefixes=mooncake)
    for name, lengths in {
        "azure_conv": (300, 60),
        "azure_code": (240, 24),
        "prefixes": (62, 4),
    }.items():
        [request, *_] = request_load(name, traces).plan(10.0, 5.0, 0)
        assert (request.num_prompt_tokens, request.num_output_tokens) == lengths
    [request, *_] = request_load("prefixes", traces).plan(10.0, 5.0, 0)
    assert request.block_ids == (7, 8)


CLIENT_TRACE = "1200,1.0,1.0,Gamma,1.0,1.0\n1800,1.0,1.0,Gamma,1.0,1.0\n"
CLIENT_LENGTHS = {"0": {"input_tokens": "{400: 1.0}", "output_tokens": "{100: 1.0}"}}


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    """Return a folder with one client of ServeGen's, which begins after 20 minutes."""
    (tmp_path / "chunk-0-trace.csv").write_text(CLIENT_TRACE)
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(CLIENT_LENGTHS))
    return tmp_path


def test_servegen_load_has_its_clients_lengths_at_the_rate_of_the_sweep(clients: Path) -> None:
    traces = Traces(servegen=clients, servegen_start_s=1200.0)
    planned = request_load("servegen", traces).plan(rate=10.0, duration_s=300.0, seed=1)
    assert len(planned) == pytest.approx(3000, rel=0.1)
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in planned} == {(60, 15)}


def test_loads_without_clients_have_no_servegen() -> None:
    assert "servegen" not in loads(SYNTHESIZED)


@pytest.mark.parametrize(
    ("start_s", "fault"), [(0.0, "soon after 0 s"), (2400.0, "no client sends requests after")]
)
def test_clients_that_send_nothing_at_the_start_are_refused(
    clients: Path, start_s: float, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        loads(Traces(servegen=clients, servegen_start_s=start_s))


def test_digests_tell_changed_traces_and_starts_apart(clients: Path) -> None:
    traces = Traces(azure_code=clients / "chunk-0-trace.csv", servegen=clients)
    before = traces.digests()
    assert sorted(before) == ["azure_code", "servegen"]
    assert replace(traces, servegen_start_s=60.0).digests() != before
    (clients / "chunk-0-dataset.json").write_text("{}")
    after = traces.digests()
    assert after["azure_code"] == before["azure_code"]
    assert after["servegen"] != before["servegen"]


def test_prefix_trace_without_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 1000, "output_length": 64}\n')
    with pytest.raises(ValueError, match="has no hash_ids"):
        loads(Traces(prefixes=path))


def test_synthesized_prefixes_are_shared_and_questions_are_not() -> None:
    rows = shared_prefixes()
    first = [row.block_ids[0] for row in rows]
    last = [row.block_ids[-1] for row in rows]
    assert len(set(first)) == NUM_PREFIXES
    assert len(set(last)) == len(rows)
    assert all(row.num_prompt_tokens == BLOCK_TOKENS * len(row.block_ids) for row in rows)
    counts = sorted(map(first.count, set(first)), reverse=True)
    assert counts[0] > 5 * counts[-1]


def test_rehearsed_engines_get_longer_chats_at_stretched_times() -> None:
    found = loads(SYNTHESIZED, scale=4.0)
    for load in (WHOLE_CHATS, WHOLE_LONG_CHATS):
        stretched = found[load.name]
        assert isinstance(stretched, ChatLoad) and stretched.gap_s == (40.0, 160.0)
        turns, again = (
            [turn for chat in each.plan(rate, duration_s, 5) for turn in chat.turns]
            for each, rate, duration_s in ((load, 2.0, 100.0), (stretched, 0.5, 400.0))
        )
        assert [turn[1:] for turn in turns] == [turn[1:] for turn in again]
        assert [4 * turn.at_s for turn in turns] == pytest.approx([turn.at_s for turn in again])


@pytest.mark.parametrize(
    "load",
    [CHATS, LONG_CHATS, WHOLE_CHATS, WHOLE_LONG_CHATS],
    ids=["short", "long", "rehearsed", "long and rehearsed"],
)
def test_chats_come_at_the_rate_from_the_first_second_on(load: ChatLoad) -> None:
    chats = load.plan(rate=20.0, duration_s=100.0, seed=5)
    times = [turn.at_s for chat in chats for turn in chat.turns]
    assert all(0 <= at_s < 100.0 for at_s in times)
    for start_s in (0.0, 50.0, 90.0):
        within = sum(start_s <= at_s < start_s + 10.0 for at_s in times)
        assert within == pytest.approx(200, rel=0.35)
    assert len(times) == pytest.approx(2000, rel=0.1)
    assert any(chat.history for chat in chats)
    for chat in chats:
        assert len(chat.turns) + len(chat.history) // 2 <= load.num_turns[1]


def test_long_chats_begin_with_a_long_prompt_and_fit_the_model() -> None:
    tokenizer = Tokenizer.from_file(str(ensure_tiny_model() / "tokenizer.json"))
    firsts, lasts = list[int](), list[int]()
    for chat in LONG_CHATS.plan(rate=20.0, duration_s=100.0, seed=5):
        said = [*(message["content"] for message in chat.history), *(t.words for t in chat.turns)]
        num_tokens = [len(tokenizer.encode(text).ids) for text in said]
        # Tokenized again, answers of random weights have up to 1.4 times the tokens.
        num_answer_tokens = 1.5 * LONG_CHATS.num_output_tokens[1] * len(chat.turns)
        firsts.append(num_tokens[0])
        lasts.append(round(sum(num_tokens) + num_answer_tokens))
    assert 850 < min(firsts) < max(firsts) < 1250
    assert 1700 < max(lasts) < MODEL_LENGTH - 50  # tokens of roles


class Talker:
    """An endpoint that answers each chat request with words and records the messages."""

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
    from macroserve_lab.bench.ports import free_port

    return free_port()


QUICK_CHATS = replace(CHATS, gap_s=(0.01, 0.02))


async def test_each_turn_repeats_the_chat_with_the_real_answers(talker) -> None:
    server, url = talker
    async with LoadClient(Target(url, 5.0)) as client:
        records = await QUICK_CHATS.run(client, "m", rate=100.0, duration_s=0.3, seed=1)
    assert len(records) == len(server.conversations)
    assert all(record.failure is None for record in records)
    assert [r.scheduled_s for r in records] == sorted(r.scheduled_s for r in records)
    longer = [c for c in server.conversations if any("goes on" in m["content"] for m in c)]
    assert longer
    for messages in server.conversations:
        roles = [message["role"] for message in messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        # The prompt begins with the previous request and its answer.
        if len(messages) > 2 and "goes on" in messages[-2]["content"]:
            number = int(messages[-2]["content"].split()[1])
            assert server.conversations[number - 1] == messages[:-2]


async def test_chat_goes_on_after_a_failed_turn(talker) -> None:
    server, url = talker
    server.failing = True
    async with LoadClient(Target(url, 5.0)) as client:
        records = await QUICK_CHATS.run(client, "m", rate=100.0, duration_s=0.2, seed=1)
    planned = QUICK_CHATS.plan(100.0, 0.2, 1)
    assert len(records) == sum(len(chat.turns) for chat in planned)
    assert all(record.failure is not None for record in records)
    # A failed request has the size of its prompt with answers of planned lengths.
    sizes: list[int] = []
    for chat in planned:
        size = sum(2 * len(message["content"].split()) for message in chat.history)
        for turn in chat.turns:
            size += 2 * len(turn.words.split())
            sizes.append(size)
            size += turn.num_output_tokens
    assert sorted(record.num_prompt_tokens for record in records) == sorted(sizes)
