"""Answers about images, and logprobs of prompts, are those of stock vLLM."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace as replaced
from openai import AsyncOpenAI, BadRequestError

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.core.scheduler.candidates import Candidates
from macroserve.core.status import Pool
from macroserve.engine.settings import EngineSettings
from macroserve.engine.token_frames import (
    Call,
    FrameParser,
    Item,
    decode_call,
    encode,
    frames,
)
from macroserve.engine.tokens import Choice, Put, TokenRequest
from macroserve.engine.vllm.environment import prepare_environment
from macroserve_lab.bench.kind_models import TEMPLATE_OF_USER, build

prepare_environment()

from support.iterated import QueueReader  # noqa: E402
from support.offline_engine import (  # noqa: E402
    InstanceEngine,
    instance_args,
    offline_engine,
)
from support.pictures import image, picture, text, user  # noqa: E402
from vllm.outputs import RequestOutput  # noqa: E402

from macroserve.engine.vllm import logprobs as vllm_logprobs  # noqa: E402
from macroserve.engine.vllm.api import text_app  # noqa: E402
from macroserve.engine.vllm.engine import VllmEngine  # noqa: E402
from macroserve.engine.vllm.frontend import RemoteLLM  # noqa: E402
from macroserve.engine.vllm.grammar import GrammarChecks  # noqa: E402
from macroserve.engine.vllm.options import frontend_config, stock_args  # noqa: E402
from macroserve_lab.bench.offline_engine import forced_async  # noqa: E402

pytestmark = pytest.mark.integration
in_one_loop = pytest.mark.asyncio(loop_scope="module")

NUM_TOKENS = 12
BATCH_TOKENS = 64
"""An image has more, so that each is computed in several steps, and the encoder's cache has room
for one."""
BLOCK_SIZE = 32
NUM_LOGPROBS = 2


@dataclass(frozen=True)
class Question:
    """A user says words, then shows images, each followed by words."""

    words: str
    seeds: tuple[int, ...] = ()

    @property
    def parts(self) -> list[dict[str, Any]]:
        shown = [part for seed in self.seeds for part in (image(seed), text("w1 w2"))]
        return [text(self.words), *shown]

    @property
    def prompt(self) -> dict[str, Any]:
        said = " ".join([self.words, *["<image> w1 w2"] * len(self.seeds)])
        prompt: dict[str, Any] = {"prompt": TEMPLATE_OF_USER.format(said)}
        if self.seeds:
            prompt["multi_modal_data"] = {"image": [picture(seed) for seed in self.seeds]}
        return prompt


def words(seed: int, count: int) -> str:
    rnd = random.Random(seed)
    return " ".join(f"w{rnd.randrange(1500)}" for _ in range(count))


QUESTIONS = [
    Question(words(1, 40), (0,)),
    Question(words(1, 40), (1,)),
    Question(words(1, 40)),
    Question(words(2, 3), (2, 0)),
    Question(words(3, 70)),
    Question(words(4, 1), (3,)),
    Question(words(2, 3), (2, 1)),
]


@pytest.fixture(scope="module")
def settings(
    small_settings: EngineSettings, tmp_path_factory: pytest.TempPathFactory
) -> EngineSettings:
    return replace(
        small_settings,
        model=str(build(tmp_path_factory.mktemp("vlm"), "vlm")),
        served_name="eyes",
        max_model_len=512,
        max_batch_tokens=BATCH_TOKENS,
        block_size=BLOCK_SIZE,
        kv_cache_bytes=16 << 20,
        api={"enable_prompt_tokens_details": True},
        args={},
    )


@pytest.fixture(scope="module")
def stock(settings: EngineSettings) -> list[RequestOutput]:
    """Return what stock vLLM answers to the questions."""
    with offline_engine(stock_args(replace(settings, prefix_caching="Off"))) as engine:
        for index, question in enumerate(QUESTIONS):
            more = {"prompt_logprobs": NUM_LOGPROBS, "logprobs": NUM_LOGPROBS}
            engine.add(str(index), question.prompt, NUM_TOKENS, detokenize=True, **more)
        engine.finish()
        return [engine.outputs[str(index)] for index in range(len(QUESTIONS))]


@pytest.fixture(scope="module")
def stock_tokens(stock: list[RequestOutput]) -> dict[str, list[int]]:
    return {str(i): list(output.outputs[0].token_ids) for i, output in enumerate(stock)}


@pytest.fixture(
    scope="module",
    params=[("unified", "sync"), ("sarathi", "async"), ("econoserve", "async")],
    ids="-".join,
)
def ours(
    request: pytest.FixtureRequest, settings: EngineSettings, stock_tokens: dict[str, list[int]]
) -> Iterator[InstanceEngine]:
    assert stock_tokens  # there is one engine to a process
    strategy, mode = request.param
    with (
        forced_async() if mode == "async" else nullcontext(),
        offline_engine(instance_args(replace(settings, strategy=strategy))) as engine,
    ):
        yield engine


def test_tokens_about_images_equal_stock_vllm(
    ours: InstanceEngine, stock_tokens: dict[str, list[int]]
) -> None:
    for index, question in enumerate(QUESTIONS):
        ours.add(str(index), question.prompt, NUM_TOKENS)
        ours.step()
    assert ours.finish(500) == stock_tokens
    status = ours.policy.status(0.0)
    assert status.num_running == 0 and status.cached_tokens > 2 * BLOCK_SIZE


def test_prompt_held_back_within_an_image_keeps_no_other_image_waiting(
    ours: InstanceEngine, stock_tokens: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, other = QUESTIONS[0], QUESTIONS[5]
    salt = {"cache_salt": "none has this prompt"}
    ours.llm.reset_encoder_cache()  # other tests have shown this image
    ours.add("0", {**begun.prompt, **salt}, NUM_TOKENS)
    while not ours.scheduler.encoder_cache_manager.cached:
        ours.step()
    in_order = Candidates.in_order

    def all_but_the_first(self: Candidates, *args: Any) -> Iterator[Any]:
        return (seq for seq in in_order(self, *args) if not seq.request_id.startswith("0"))

    with monkeypatch.context() as patch:
        patch.setattr(Candidates, "in_order", all_but_the_first)
        ours.add("5", {**other.prompt, **salt}, NUM_TOKENS)
        for _ in range(200):
            ours.step()
        assert ours.unfinished == 1
    tokens = ours.finish(200)
    assert tokens == {name: stock_tokens[name] for name in ("0", "5")}


class Instance:
    """The streamer of an ingress calls an engine as over frames, and loses it again and again.

    Attributes:
        lost_after: tokens after which an engine is lost.
        requests: requests as the engine got them.
    """

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.lost_after = 1000
        self.requests: list[TokenRequest] = []

    def info(self, request_id: str) -> RequestInfo:
        return RequestInfo(route_id=request_id, age_s=0.0, slo=Slo(600.0, 60.0))

    async def stream(self, request: TokenRequest, put: Put) -> None:
        emitted: list[int] = []
        while not await self._attempt(request, emitted, put):
            pass

    async def _attempt(self, request: TokenRequest, emitted: list[int], put: Put) -> bool:
        """Return whether the request has ended."""
        route_id = f"{request.request_id}-{len(self.requests)}"
        info = replaced(request.info, route_id=route_id, num_streamed_tokens=len(emitted))
        call = decode_call(encode(Call("connection", 0, request.attempt(info, emitted))))
        self.requests.append(call.request)
        reader, num_here = QueueReader(), 0
        leave = await self._engine.submit(call.request, reader)
        while num_here < self.lost_after:
            choice = over_frames(await reader.next())
            put(choice)
            emitted += choice.token_ids or []
            num_here += len(choice.token_ids or [])
            if choice.finish_reason is not None:
                return True
        leave(None)
        return False


def over_frames(choice: Choice) -> Choice:
    item = Item(
        0,
        choice.token_ids or [],
        choice.finish_reason,
        choice.stop_reason,
        choice.logprobs,
        num_cached=choice.num_cached,
        prompt_logprobs=choice.prompt_logprobs,
    )
    ((found,),) = FrameParser().feed(b"".join(frames([item])))
    return found.choice


@dataclass
class Ingress:
    instance: Instance
    client: AsyncOpenAI

    async def ask(self, question: Question, **more: Any) -> Any:
        return await self.client.chat.completions.create(
            model="eyes",
            messages=user(*question.parts),
            max_completion_tokens=NUM_TOKENS,
            temperature=0,
            extra_body={"ignore_eos": True, **more},
        )


@pytest.fixture(scope="module")
async def ingress(settings: EngineSettings, stock: list[RequestOutput]) -> AsyncIterator[Ingress]:
    engine = VllmEngine(settings, Pool.LP)
    await engine.start()
    instance = Instance(engine)
    llm = RemoteLLM(frontend_config(settings), instance, lambda: None, GrammarChecks(settings))
    app = await text_app(llm, settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport)
    async with AsyncOpenAI(
        api_key="none", base_url="http://test/v1", max_retries=0, http_client=http
    ) as client:
        yield Ingress(instance, client)
    await engine.stop()


@pytest.fixture(params=[1000, 5], ids=["", "lost"])
def losing(request: pytest.FixtureRequest, ingress: Ingress) -> Iterator[Ingress]:
    ingress.instance.requests.clear()
    ingress.instance.lost_after = request.param
    yield ingress
    ingress.instance.lost_after = 1000


@in_one_loop
async def test_answers_to_a_client_equal_stock_vllm(
    losing: Ingress, stock: list[RequestOutput]
) -> None:
    found = await asyncio.gather(*(losing.ask(question) for question in QUESTIONS))
    assert [answer.choices[0].message.content for answer in found] == [
        output.outputs[0].text for output in stock
    ]


@in_one_loop
async def test_other_image_shares_no_block_from_the_image_on(ingress: Ingress) -> None:
    salt = {"cache_salt": "of this test"}

    async def num_cached(*seeds: int) -> int:
        question = Question(words(9, 2 * BLOCK_SIZE), seeds)
        usage = (await ingress.ask(question, **salt)).usage
        details = usage.prompt_tokens_details
        return details.cached_tokens if details else 0

    assert await num_cached(5) == 0
    before_the_image = await num_cached(6)
    assert before_the_image == 2 * BLOCK_SIZE
    assert await num_cached(5) > before_the_image


def listed(logprobs: Any) -> list[Any]:
    """Return token, rank and rounded logprob of each position."""
    return [
        row
        and sorted((int(t), found["rank"], round(found["logprob"], 3)) for t, found in row.items())
        for row in logprobs
    ]


@in_one_loop
async def test_logprobs_of_a_prompt_equal_stock_vllm_and_come_once(
    losing: Ingress, stock: list[RequestOutput]
) -> None:
    for question, output in zip(QUESTIONS[:3], stock, strict=False):
        losing.instance.requests.clear()
        answer = await losing.ask(question, prompt_logprobs=NUM_LOGPROBS)
        assert answer.choices[0].message.content == output.outputs[0].text
        assert output.prompt_logprobs is not None
        wanted = [
            row and {token: {"rank": p.rank, "logprob": p.logprob} for token, p in row.items()}
            for row in output.prompt_logprobs
        ]
        assert listed(answer.prompt_logprobs) == listed(wanted)
        asked = [each.sampling.get("prompt_logprobs") for each in losing.instance.requests]
        assert asked == [NUM_LOGPROBS, *[None] * (len(asked) - 1)]


@in_one_loop
async def test_logprobs_of_tokens_equal_stock_vllm_and_come_once(
    losing: Ingress, stock: list[RequestOutput]
) -> None:
    for question, output in zip(QUESTIONS[:3], stock, strict=False):
        answer = await losing.ask(question, logprobs=True, top_logprobs=NUM_LOGPROBS)
        content = answer.choices[0].logprobs.content
        (choice,) = output.outputs
        wanted = [*zip(choice.token_ids, choice.logprobs, strict=True)]
        assert [round(token.logprob, 3) for token in content] == [
            round(row[token_id].logprob, 3) for token_id, row in wanted
        ]
        likeliest = [[round(top.logprob, 3) for top in token.top_logprobs] for token in content]
        assert likeliest == [
            [round(top.logprob, 3) for top in row.values()][:NUM_LOGPROBS] for _, row in wanted
        ]


@in_one_loop
async def test_echoed_prompt_has_logprobs(ingress: Ingress) -> None:
    prompt = [20, 30, 40, 50]
    answer = await ingress.client.completions.create(
        model="eyes", prompt=prompt, max_tokens=2, echo=True, logprobs=1, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == len(prompt) + 2
    assert logprobs.token_logprobs[0] is None and all(p < 0 for p in logprobs.token_logprobs[1:])


@in_one_loop
async def test_too_many_logprobs_of_a_prompt_are_refused(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_logprobs, "MAX_PROMPT_LOGPROBS", 12)
    body = {"model": "eyes", "prompt": [20, 30, 40, 50], "max_tokens": 1}
    await ingress.client.completions.create(**body, extra_body={"prompt_logprobs": 2})
    with pytest.raises(BadRequestError, match="of a prompt of 4 tokens would be 16; at most 12"):
        await ingress.client.completions.create(**body, extra_body={"prompt_logprobs": 3})
