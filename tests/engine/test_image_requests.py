"""An ingress turns images of requests into features of the prompt, without an engine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.engine.settings import EngineSettings
from macroserve.engine.tokens import Choice, Logprobs, Put, TokenRequest, unpack
from macroserve.engine.vllm.environment import prepare_environment
from macroserve_lab.bench.kind_models import build

prepare_environment()

from support.pictures import base64_of, image, text, user  # noqa: E402
from support.public_app import shaped  # noqa: E402
from support.slo_classes import default_class  # noqa: E402
from vllm.v1.outputs import LogprobsTensors  # noqa: E402

from macroserve.engine.vllm import frontend  # noqa: E402
from macroserve.engine.vllm.api import limits_of, text_app  # noqa: E402
from macroserve.engine.vllm.features import check_features, decode_features  # noqa: E402
from macroserve.engine.vllm.frontend import RemoteLLM  # noqa: E402
from macroserve.engine.vllm.grammar import GrammarChecks  # noqa: E402
from macroserve.engine.vllm.logprobs import packed  # noqa: E402
from macroserve.engine.vllm.options import frontend_config  # noqa: E402
from macroserve.serving.ingress.body_limit import BodyLimit  # noqa: E402
from macroserve.serving.ingress.request_check import RequestCheck  # noqa: E402
from macroserve.serving.ingress.request_targets import RequestTargets  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SLO = Slo(ttft_s=2.0, tpot_s=0.1)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


class Streamer:
    """The streamer keeps requests, and answers one token to each, once ``go`` is set."""

    def __init__(self) -> None:
        self.requests: list[TokenRequest] = []
        self.came = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.go.set()

    def info(self, request_id: str) -> RequestInfo:
        return RequestInfo(route_id=request_id, age_s=0.0, slo=SLO)

    async def stream(self, request: TokenRequest, put: Put) -> None:
        self.requests.append(request)
        self.came.release()
        await self.go.wait()
        asked = request.sampling.get("prompt_logprobs")
        token_ids = unpack(request.token_ids)
        logprobs = None if asked is None else made_up_logprobs(token_ids, asked)
        put(Choice([20], "length", prompt_logprobs=logprobs))


def made_up_logprobs(token_ids: list[int], num: int) -> Logprobs:
    """Return logprobs of which the token's own is -1, and those of the likeliest are -2, -3, ..."""
    rows = [[token, *range(num)] for token in token_ids[1:]]
    values = [[-1.0 - column for column in range(num + 1)] for _ in rows]
    ranks = torch.full((len(rows),), 30)
    return packed(LogprobsTensors(torch.tensor(rows), torch.tensor(values), ranks))


@dataclass
class Ingress:
    http: httpx.AsyncClient
    streamer: Streamer

    async def post(self, path: str, **body: Any) -> httpx.Response:
        self.streamer.requests.clear()
        return await self.http.post(path, json={"model": "eyes", **body})

    async def chat(self, *parts: dict[str, Any], **more: Any) -> httpx.Response:
        return await self.post(CHAT, messages=user(*parts), max_tokens=1, **more)

    @property
    def features(self) -> list[bytes]:
        return [request.features for request in self.streamer.requests]


@pytest.fixture(scope="module")
async def ingress(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ingress]:
    settings = EngineSettings(
        model=str(build(tmp_path_factory.mktemp("vlm"), "vlm")),
        served_name="eyes",
        max_model_len=1024,
        strategy="unified",
        dtype="float32",
        slo=SLO,
        args={"limit_mm_per_prompt": {"image": 2}},
    )
    streamer = Streamer()
    llm = RemoteLLM(frontend_config(settings), streamer, lambda: None, GrammarChecks(settings))
    app = await text_app(llm, settings)
    targets = RequestTargets(default_class(settings.slo), (), takes_numbers=False)
    app = shaped(BodyLimit(app, RequestCheck(limits_of(llm, app), targets)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Ingress(http, streamer)


async def test_features_of_an_image_say_where_it_is_in_the_prompt(ingress: Ingress) -> None:
    answer = await ingress.chat(text("w1"), image(0), text("w2 w3"))
    assert answer.status_code == 200, answer.text
    (request,) = ingress.streamer.requests
    (feature,) = decode_features(request.features)
    place, prompt = feature.mm_position, unpack(request.token_ids)
    token_ids = prompt[place.offset : place.offset + place.length]
    assert place.is_embed is not None
    image_id = max(set(token_ids), key=token_ids.count)
    assert place.is_embed.tolist() == [token == image_id for token in token_ids]
    assert 0 < place.get_num_embeds() < place.length
    assert feature.modality == "image" and feature.mm_hash
    check_features([feature], len(prompt))


async def test_text_alone_has_no_features(ingress: Ingress) -> None:
    assert (await ingress.chat(text("w1"))).status_code == 200
    assert ingress.features == [b""]


async def test_image_is_sent_whole_each_time_and_to_each_choice(ingress: Ingress) -> None:
    await ingress.chat(image(0), n=2)
    first = ingress.features
    await ingress.chat(image(0))
    assert first == [*ingress.features] * 2
    await ingress.chat(image(1))
    assert first != ingress.features


async def test_image_means_the_same_in_each_api(ingress: Ingress) -> None:
    await ingress.chat(text("w1"), image(0))
    chat = ingress.streamer.requests[0]
    part = {"type": "input_image", "image_url": image(0)["image_url"]["url"]}
    content = [{"type": "input_text", "text": "w1"}, part]
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(0)}
    anthropic = user(text("w1"), {"type": "image", "source": source})
    for path, body in (
        (RESPONSES, {"input": [{"role": "user", "content": content}]}),
        (MESSAGES, {"messages": anthropic, "max_tokens": 1}),
    ):
        answer = await ingress.post(path, **body)
        assert answer.status_code == 200, answer.text
        (request,) = ingress.streamer.requests
        assert request.token_ids == chat.token_ids
        assert request.features == chat.features


async def test_logprobs_of_a_prompt_reach_the_client(ingress: Ingress) -> None:
    answer = await ingress.post(
        "/v1/completions", prompt=[20, 30, 40], max_tokens=1, prompt_logprobs=2
    )
    assert answer.status_code == 200, answer.text
    first, *others = answer.json()["choices"][0]["prompt_logprobs"]
    assert first is None
    assert [{t: (p["logprob"], p["rank"]) for t, p in row.items()} for row in others] == [
        {token: (-1.0, 30), "0": (-2.0, 1), "1": (-3.0, 2)} for token in ("30", "40")
    ]


BAD = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (BAD, "its format is not known"),
        ({"type": "image_url", "image_url": {"url": "http://localhost:1/"}}, "not be fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "spec.engine.args"),
        ({"type": "image_url"}, ""),
        ({"type": "image_url", "image_url": {}}, ""),
        ({"type": "image_url", "image_url": {"url": ""}}, ""),
        ({"type": "image_url", "image_url": {"url": 5}}, ""),
        ({"type": "image_pil", "image_pil": "/etc/hostname"}, "image_pil"),
        ({"image_pil": "http://localhost:1/"}, "image_pil"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "spec.engine.args.enableMmEmbeds"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}, "video"),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "audio"),
    ],
)
async def test_bad_image_is_refused_in_a_sentence(
    ingress: Ingress, part: dict[str, Any], says: str
) -> None:
    answer = await ingress.chat(text("w1"), part)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("size", [{"width": 1, "height": 2000}, {"width": 2000, "height": 1}])
async def test_thin_image_is_served(ingress: Ingress, size: dict[str, int]) -> None:
    assert (await ingress.chat(image(0, **size))).status_code == 200


async def test_images_beyond_the_models_limit_are_refused(ingress: Ingress) -> None:
    answer = await ingress.chat(image(0), image(1), image(2))
    assert answer.status_code == 400
    assert "At most 2 image(s)" in answer.json()["error"]["message"]


async def test_images_that_are_too_large_for_the_model_are_refused(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ingress.chat(image(0))
    monkeypatch.setattr(frontend, "MAX_FEATURES_BYTES", 2 * len(ingress.features[0]))
    assert (await ingress.chat(image(0))).status_code == 200
    answer = await ingress.chat(image(0), n=3)
    assert answer.status_code == 400
    assert "send fewer or smaller images" in answer.json()["error"]["message"]


async def test_images_beyond_what_an_ingress_keeps_are_refused_until_others_end(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ingress.chat(image(0))
    monkeypatch.setattr(frontend, "MAX_HELD_BYTES", 2 * len(ingress.features[0]))
    ingress.streamer.go.clear()
    ingress.streamer.came = asyncio.Semaphore(0)
    others = [asyncio.create_task(ingress.chat(image(seed))) for seed in (0, 1)]
    for _ in others:
        await ingress.streamer.came.acquire()
    answer = await ingress.chat(image(0))
    assert answer.status_code == 503
    assert "retry later" in answer.json()["error"]["message"]
    ingress.streamer.go.set()
    assert [answer.status_code for answer in await asyncio.gather(*others)] == [200, 200]
    assert (await ingress.chat(image(0))).status_code == 200


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xc0", b"\x91\x81\xa4data\xc0", b"\x91\x01"])
async def test_bytes_that_are_no_features_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_features(data)


async def test_pickle_in_features_is_not_unpickled(ingress: Ingress) -> None:
    await ingress.chat(image(0))
    # An extension of the type that vLLM would unpickle if it were allowed to.
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_features(b"\x91\xd4\x01" + b"N")


async def test_features_outside_of_the_prompt_are_refused(ingress: Ingress) -> None:
    await ingress.chat(image(0))
    (feature,) = decode_features(ingress.features[0])
    with pytest.raises(ValueError, match="outside of the prompt"):
        check_features([feature], 3)
