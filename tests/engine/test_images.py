"""Images of chats reach the engine, and the answers are those of stock vLLM."""

import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from openai import AsyncOpenAI
from PIL import Image

from macroserve.core.request import Slo
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.token_frames import Call, decode_call, encode, pack, unpack
from macroserve.engine.tokens import Choice, Put, TokenRequest
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.iterated import QueueReader  # noqa: E402
from support.small_vision_model import build_vision_model  # noqa: E402

from macroserve.engine.vllm.api import text_app  # noqa: E402
from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402
from macroserve.engine.vllm.frontend import RemoteLLM  # noqa: E402
from macroserve.engine.vllm.grammar import GrammarChecks  # noqa: E402
from macroserve.engine.vllm.options import frontend_config  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_TOKENS = 24


def image(seed: int, width: int = 50, height: int = 40) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def part(seed: int, **size: int) -> dict[str, Any]:
    data = io.BytesIO()
    image(seed, **size).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def words(*numbers: int) -> dict[str, Any]:
    return {"type": "text", "text": " ".join(f"w{number}" for number in numbers)}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    return EngineSettings(
        model=str(build_vision_model(tmp_path_factory.mktemp("idefics3"))),
        served_name="eyes",
        max_model_len=1024,
        strategy="unified",
        dtype="float32",
        # Loose targets: nothing is late, whatever the test machine does.
        slo=Slo(ttft_s=600.0, tpot_s=60.0),
        max_batch_tokens=128,
        block_size=32,
        kv_cache_bytes=32 << 20,
        hybrid_cache="Off",
    )


class Instance:
    """The streamer of an ingress with one instance, which is lost after ``lost_after`` tokens."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.lost_after = NUM_TOKENS
        self.num_cached: list[int] = []
        self.num_calls = 0

    async def stream(self, request: TokenRequest, put: Put) -> None:
        emitted: list[int] = []
        while True:
            choice = await self._attempt(request, emitted, put)
            if choice.finish_reason is not None:
                return

    async def _attempt(self, request: TokenRequest, emitted: list[int], put: Put) -> Choice:
        self.num_calls += 1
        sampling = {**request.sampling, "max_tokens": request.max_new_tokens - len(emitted)}
        fields = {
            **request.options,
            "request_id": f"{request.request_id}-{self.num_calls}",
            "sampling_params": sampling,
        }
        packed = pack([*request.token_ids, *emitted])
        call = decode_call(encode(Call("connection", 0, packed, fields)))
        reader = QueueReader()
        leave = await self._engine.submit(
            {**call.request, "token_ids": unpack(call.token_ids)}, reader
        )
        num_here = 0
        while True:
            choice = await reader.next()
            put(choice)
            emitted += choice.token_ids or []
            num_here += len(choice.token_ids or [])
            self.num_cached.append(choice.num_cached)
            if choice.finish_reason is not None:
                return choice
            if num_here >= self.lost_after:
                await leave()
                return choice


@pytest.fixture(scope="module")
async def ingress(settings: EngineSettings) -> AsyncIterator[tuple[Instance, AsyncOpenAI]]:
    engine = VllmEngine(settings, Pool.LP)
    await engine.start()
    instance = Instance(engine)
    llm = RemoteLLM(frontend_config(settings), instance, lambda: None, GrammarChecks(settings))
    app = await text_app(llm, settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with AsyncOpenAI(
        api_key="none",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),
    ) as client:
        yield instance, client
    await engine.stop()


async def ask(client: AsyncOpenAI, *parts: dict[str, Any]) -> str:
    messages: Any = [{"role": "user", "content": [*parts]}]
    answer = await client.chat.completions.create(
        model="eyes",
        messages=messages,
        max_completion_tokens=NUM_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return answer.choices[0].message.content or ""


async def test_x(ingress) -> None:
    instance, client = ingress
    print(await ask(client, words(1, 2, 3), part(0), words(4)))
    print(await ask(client, words(1, 2, 3), part(1), words(4)))
    print(await ask(client, words(1, 2, 3), part(0), words(4)))
    instance.lost_after = 7
    print(await ask(client, words(1, 2, 3), part(0), words(4)))
    print(instance.num_cached, instance.num_calls)
