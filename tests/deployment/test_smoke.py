"""One deployment with three real engines: chat, a cell that splits, an instance that is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import yaml
from openai import OpenAI
from support.deployment import Up, running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MODEL = "tiny-llama"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    document = yaml.safe_load(Path("manifests/quickstart.yaml").read_text())
    document["metadata"]["name"] = "test"
    with running(tmp_path_factory.mktemp("smoke"), document) as deployment:
        yield deployment


class Streams:
    """Greedy streams of different prompts, read in the background."""

    def __init__(self, up: Up, num_streams: int, num_tokens: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(num_streams)]
        self._num_tokens = num_tokens
        self._client = OpenAI(base_url=up.endpoint + "/v1", api_key="none", max_retries=0)
        self._threads = [Thread(target=self._read, args=(each,)) for each in range(num_streams)]
        for thread in self._threads:
            thread.start()

    def _read(self, number: int) -> None:
        chunks = self._client.completions.create(
            model=MODEL,
            prompt=[50 + 17 * number + 3 * position for position in range(30)],
            max_tokens=self._num_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        for chunk in chunks:
            self.tokens[number] += (chunk.choices[0].model_extra or {})["token_ids"] or []

    @property
    def have_begun(self) -> bool:
        return all(self.tokens)

    def wait(self) -> list[list[int]]:
        for thread in self._threads:
            thread.join(timeout=120)
        return self.tokens


def test_chat_streams_tokens_and_usage(up: Up) -> None:
    client = OpenAI(base_url=up.endpoint + "/v1", api_key="none", max_retries=0)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 16


def test_killed_instance_and_split_cell_change_no_token(up: Up) -> None:
    expected = Streams(up, 6, 200).wait()
    assert [len(tokens) for tokens in expected] == [200] * 6

    streams = Streams(up, 6, 200)
    up.wait_for(lambda: streams.have_begun)
    title = "macroserve.serving.instance.token_process"
    engine = max(up.processes(title), key=lambda each: each.cpu_times().user)
    os.kill(engine.pid, signal.SIGKILL)
    assert streams.wait() == expected
    assert up.metrics()["macroserve_reroutes_total"] > 0
    up.wait_for(lambda: len(up.instances()) == 3, timeout_s=180)

    assert up.command("scale", "5").returncode == 0
    up.wait_for(lambda: len(up.cells()) == 2 and len(up.instances()) == 5, timeout_s=180)
    assert Streams(up, 6, 200).wait() == expected
