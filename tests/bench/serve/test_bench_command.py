"""The command from its options to its exit code, against a server in another thread."""

import asyncio
import json
import os
import re
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
import typer
from aiohttp import web
from typer.testing import CliRunner, Result

from macroserve.cli.bench_serve import serve

app = typer.Typer()
app.command()(serve)

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:4{i}.5,{10 + i},{1 + i}\n" for i in range(10)
)
CHAT = "chat=0.5,ttft=1s,tpot=50ms"
SYNTHETIC = ("--rate", "200", "--num-requests", "10", "--output-tokens", "2")


def bench(*options: object) -> Result:
    return CliRunner(env={"OPENAI_API_KEY": None}).invoke(app, [str(option) for option in options])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "give either --trace FILE or --rate R"),
        (("--rate", 1, "--trace", "x.csv"), "give either --trace FILE or --rate R"),
        (("--trace", "none.csv"), "none.csv: No such file or directory"),
        (("--rate", 0), "the rate must be positive"),
        (("--rate", "nan"), "the rate must be positive"),
        (("--rate", 1, "--cv", 2), "--cv needs --arrivals gamma"),
        (("--rate", 1, "--arrivals", "gamma"), "--arrivals gamma needs --cv"),
        (
            ("--rate", 1, "--time-scale", 2),
            "--time-scale, --trace-unit and --lenient need --trace",
        ),
        (("--rate", 1, "--lenient"), "--time-scale, --trace-unit and --lenient need --trace"),
        (("--rate", 1, "--prompt-tokens", "many"), "--prompt-tokens: 'many' is not a token length"),
        (("--rate", 1, "--output-tokens", "0"), "--output-tokens: '0' is not a token length"),
        (("--rate", 1, "--ttft", "soon"), "--ttft: 'soon' is not a duration"),
        (("--rate", 1, "--tpot", "0"), "--tpot must be positive"),
        (("--rate", 1, "--tbt", "0s"), "--tbt must be positive"),
        (("--rate", 1, "--timeout", "inf"), "--timeout: 'inf' is not a duration"),
        (("--rate", 1, "--duration", "-5s"), "--duration: '-5s' is not a duration"),
        (("--rate", 1, "--duration", "1us"), "--duration: '1us' is not a duration"),
        (("--rate", 1, "--num-requests", 0), "at least one request"),
        (("--rate", 1, "--length-scale", 0), "length scale must be positive"),
        (("--rate", 1, "--duration", "1ms"), "no request arrives within --duration"),
        (("--rate", 1, "--goodput", 90), "must be above 0 and at most 1"),
        (("--rate", 1, "--url", "localhost:8000"), "--url must be like"),
        (("--rate", 1, "--url", "http://me:word@host"), "--url must be like"),
        (("--rate", 1, "--url", "http://host/v1?key=1"), "--url must be like"),
        (("--rate", 1, "--shared-prefix", "150"), "--shared-prefix: expected groups=150,prompts=5"),
        (
            ("--rate", 1, "--multi-turn", "turns=0,think=1s"),
            "--multi-turn: a conversation must have 1 to",
        ),
        (("--rate", 1, "--slo-class", "chat"), "--slo-class must be like interactive=0.3,ttft=1s"),
        (("--rate", 1, "--slo-class", CHAT.replace("0.5", "1.5")), "above 0 and at most 1"),
        (("--rate", 1, "--slo-class", CHAT.replace("0.5", "0..5")), "above 0 and at most 1"),
        (("--rate", 1, "--slo-class", CHAT.replace("1s", "soon")), "'soon' is not a duration"),
        (("--rate", 1, "--slo-class", CHAT.replace("chat", "default")), "the name is taken"),
        (("--rate", 1, "--slo-class", CHAT, "--slo-class", CHAT), "the name is taken"),
        (
            ("--rate", 1, "--slo-class", CHAT, "--slo-class", CHAT.replace("chat=0.5", "b=0.6")),
            "sum to at most 1",
        ),
        (("--rate", 1, "--json", "no/such/folder/x.json"), "--json: cannot write"),
        (("--rate", 1, "--plot", "."), "--plot: cannot write"),
    ],
)
def test_bench_with_bad_options_fails_with_one_sentence(
    options: tuple[object, ...], sentence: str
) -> None:
    result = bench(*options)
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("macroserve bench serve: ")
    assert sentence in line


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--cv", 2), "a trace has its own arrivals and prompts"),
        (("--prompt-tokens", 5), "a trace has its own arrivals and prompts"),
        (
            ("--shared-prefix", "groups=1,prompts=1,tokens=9"),
            "a trace has its own arrivals and prompts",
        ),
        (("--multi-turn", "turns=2,think=1s"), "a trace has its own arrivals and prompts"),
        (("--time-scale", 0), "the time scale must be positive"),
        (("--goodput", 0.9, "--duration", "10s"), "only loads up to 0.9 last for a whole probe"),
        (("--goodput", 0.9), "only loads up to 0.15 last for a whole probe"),
    ],
)
def test_bench_with_options_that_do_not_fit_a_trace_is_refused(
    options: tuple[object, ...], sentence: str, trace: Path
) -> None:
    result = bench("--trace", trace, *options)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_bench_key_that_no_header_can_carry_is_refused_unseen() -> None:
    result = bench(*SYNTHETIC, "--api-key", "sk\nsecret")
    assert result.exit_code == 2
    assert "secret" not in result.output


def test_bench_with_a_bad_trace_row_sends_no_request(endpoint_in_thread, trace: Path) -> None:
    trace.write_text(TRACE + "2023-11-16 18:15:50,many,1\n")
    result = bench("--url", endpoint_in_thread.url, "--trace", trace)
    assert result.exit_code == 2
    assert f"{trace}, line 12: ContextTokens is 'many'" in result.stderr
    assert endpoint_in_thread.headers == []

    result = bench(
        "--url", endpoint_in_thread.url, "--trace", trace, "--lenient", "--time-scale", 100
    )
    assert result.exit_code == 0
    assert "1 invalid rows of the trace skipped" in result.stderr
    assert len(endpoint_in_thread.bodies) == 10


def test_bench_with_a_trace_replays_its_lengths(endpoint_in_thread, trace: Path) -> None:
    result = bench(
        "--url", endpoint_in_thread.url + "/v1/", "--trace", trace, "--time-scale", 100,
        "--max-output-tokens", 4,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    # They are sent 10 ms apart, and may arrive in another order.
    sent = sorted((len(body["prompt"]), body["max_tokens"]) for body in endpoint_in_thread.bodies)
    assert sent == [(10 + i, min(4, 1 + i)) for i in range(10)]
    assert "10 requests over 0.1 s" in result.stderr
    assert "attainment  100.0% within their targets" in result.stdout
    assert "10 sent of 10: 10 succeeded, 0 failed, 0 interrupted" in result.stdout


def test_bench_of_classes_reports_each_by_its_own_targets(endpoint_in_thread, tmp_path) -> None:
    path = tmp_path / "report.json"
    options = ("--rate", 100, "--num-requests", 60, "--url", endpoint_in_thread.url)
    strict = "strict=0.3,ttft=1ms,tpot=50ms,tbt=1s"
    classes = ("--slo-class", CHAT, "--slo-class", strict)
    result = bench(*options, "--output-tokens", 2, *classes, "--json", path)
    assert result.exit_code == 0, result.stderr
    [run] = json.loads(path.read_text())["runs"]
    found = {each["name"]: each["num_requests"] for each in run["summary"]["classes"]}
    assert found.keys() == {"chat", "default", "strict"} and sum(found.values()) == 60
    sent = Counter(headers.get("X-SLO-Class", "default") for headers in endpoint_in_thread.headers)
    sent["default"] -= 1  # the list of models
    assert sent == found
    assert "SLO classes" in result.stdout and "strict" in result.stdout


def test_bench_writes_json_and_plot_without_the_key(endpoint_in_thread, tmp_path: Path) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "report.png"
    result = bench(
        "--url", endpoint_in_thread.url, *SYNTHETIC, "--endpoint", "chat", "--seed", 4,
        "--json", report, "--plot", picture, "--api-key", "sk-secret\n",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert endpoint_in_thread.headers[1]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in result.output + report.read_text()
    data = json.loads(report.read_text())
    assert data["config"]["model"] == "tiny"
    assert data["config"]["seed"] == 4
    assert data["config"]["endpoint"] == "chat"
    assert data["goodput"] is None
    [run] = data["runs"]
    assert [request["num_tokens"] for request in run["requests"]] == [2] * 10
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_with_the_same_seed_sends_the_same_requests(endpoint_in_thread) -> None:
    for seed in (1, 1, 2):
        bench("--url", endpoint_in_thread.url, *SYNTHETIC, "--seed", seed)
    # Requests in flight together may overtake each other.
    first, again, other = (
        sorted(endpoint_in_thread.bodies[i : i + 10], key=lambda body: body["prompt"])
        for i in (0, 10, 20)
    )
    assert first == again != other


def test_bench_of_an_unreachable_endpoint_exits_with_1() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = bench("--url", url, *SYNTHETIC)
    assert result.exit_code == 1
    assert f"macroserve bench serve: cannot reach {url}" in result.stderr
    assert result.stdout == ""


def test_bench_without_a_success_exits_with_1_and_reports(endpoint_in_thread) -> None:
    async def refuse(request: web.Request, body: dict) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no [/room]"}}, status=429)

    endpoint_in_thread.answer = refuse
    result = bench("--url", endpoint_in_thread.url, *SYNTHETIC)
    assert result.exit_code == 1
    assert "10 failed: http (HTTP 429), such as: no [/room]" in result.stdout
    assert result.stderr.splitlines()[-1] == "macroserve bench serve: no request succeeded"


def test_bench_with_some_failures_exits_with_0(endpoint_in_thread) -> None:
    async def answer_first(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint_in_thread.bodies) > 1:
            return web.Response(status=500)
        return await endpoint_in_thread.answer_fully(request, body)

    endpoint_in_thread.answer = answer_first
    result = bench("--url", endpoint_in_thread.url, *SYNTHETIC)
    assert result.exit_code == 0
    assert "attainment  10.0% within their targets" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_run_on_a_signal_ends_with_a_report(
    endpoint_in_thread, tmp_path: Path, number: signal.Signals
) -> None:
    async def interrupt_third(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint_in_thread.bodies) == 3:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        return await endpoint_in_thread.answer_fully(request, body)

    handler = signal.getsignal(number)
    endpoint_in_thread.answer = interrupt_third
    report, trace = tmp_path / "report.json", tmp_path / "trace.jsonl"
    row = '{"arrival_s": %s, "prompt_tokens": 5, "output_tokens": 2}'
    trace.write_text("\n".join(row % arrival_s for arrival_s in (0, 0, 1, 3600)))
    result = bench("--url", endpoint_in_thread.url, "--trace", trace, "--json", report)
    assert result.exit_code == 0, result.output
    assert "3 sent of 4: 2 succeeded, 0 failed, 1 interrupted" in result.stdout
    [run] = json.loads(report.read_text())["runs"]
    assert [request["failure"] for request in run["requests"]] == [None, None, "interrupted"]
    assert signal.getsignal(number) == handler


def test_goodput_of_a_trace_is_searched_up_to_its_highest_speed(
    endpoint_in_thread, trace: Path, tmp_path: Path
) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "goodput.png"
    result = bench(
        "--url", endpoint_in_thread.url, "--trace", trace, "--time-scale", 25, "--duration", "90ms",
        "--goodput", 0.9, "--json", report, "--plot", picture,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Goodput at 90% attainment: 100 x speed or more" in result.stdout
    data = json.loads(report.read_text())
    assert [run["intensity"] for run in data["runs"]] == [25, 50, pytest.approx(100), 50]
    assert data["goodput"]["is_capped"] is True
    assert data["goodput"]["lower_attainment"] == 1.0
    assert picture.read_bytes().startswith(b"\x89PNG")
    prompts = [tuple(body["prompt"]) for body in endpoint_in_thread.bodies]
    assert len(set(prompts)) == len(prompts), "a prefix cache must not answer for another probe"


def test_goodput_command_with_no_load_that_holds_says_so(endpoint_in_thread) -> None:
    async def refuse(request: web.Request, body: dict) -> web.StreamResponse:
        return web.Response(status=503)

    endpoint_in_thread.answer = refuse
    result = bench(
        "--url", endpoint_in_thread.url, "--rate", 200, "--duration", "50ms", "--goodput", 0.5
    )
    assert result.exit_code == 1
    assert "No load tried holds 50% attainment." in result.stdout


def test_goodput_search_on_a_signal_reports_its_probes(endpoint_in_thread) -> None:
    async def interrupt_late(request: web.Request, body: dict) -> web.StreamResponse:
        if len(endpoint_in_thread.bodies) == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return await endpoint_in_thread.answer_fully(request, body)

    endpoint_in_thread.answer = interrupt_late
    result = bench(
        "--url", endpoint_in_thread.url, "--rate", 100, "--num-requests", 10, "--goodput", 0.9,
        "--output-tokens", 2,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "The search did not end." in result.stdout


def test_goodput_search_of_an_endpoint_that_went_away_gives_up() -> None:
    """The endpoint lists its models, and then its port is closed."""
    listener = socket.create_server(("127.0.0.1", 0))

    def list_models_and_leave() -> None:
        connection, _ = listener.accept()
        listener.close()
        with connection:
            connection.recv(4096)
            body = b'{"data": [{"id": "tiny"}]}'
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body)

    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = threading.Thread(target=list_models_and_leave)
    server.start()
    result = bench("--url", url, *SYNTHETIC, "--goodput", 0.9)
    server.join()
    assert result.exit_code == 1
    assert "10 failed: connect" in result.stdout
    assert len(re.findall(r"^│ .* │$", result.stdout, re.MULTILINE)) == 1
