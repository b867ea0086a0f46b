"""An ingress asks an instance for logprobs and converts the answer."""

import asyncio
from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from macroserve.api.messages import RequestInfo
from macroserve.core.request import Slo
from macroserve.engine.token_frames import FrameParser, Item, frames
from macroserve.engine.tokens import Choice, Put, RefusedError, TokenRequest
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest  # noqa: E402
from vllm.v1.outputs import LogprobsLists, LogprobsTensors  # noqa: E402

from macroserve.engine.vllm.frontend import RemoteCore  # noqa: E402
from macroserve.engine.vllm.logprobs import (  # noqa: E402
    LEAST_LOGPROB,
    check_prompt_logprobs,
    packed,
    unpacked_prompt,
)

VOCAB_SIZE = 1000


def test_logprobs_of_a_prompt_are_the_same_at_the_ingress() -> None:
    tensors = LogprobsTensors(
        torch.tensor([[5, 6, 7], [8, 9, 8]], dtype=torch.int32),
        torch.tensor([[-0.5, -1.0, -2.0], [-3.0, -0.25, -torch.inf]]),
        torch.tensor([1, 40], dtype=torch.int32),
    )
    found = unpacked_prompt(packed(tensors))
    assert found is not None
    assert all(map(torch.equal, found[:3], tensors[:3]))


def test_prompt_of_one_token_has_no_logprobs() -> None:
    none = torch.empty((0, 3), dtype=torch.int32), torch.empty((0, 3)), torch.empty(0)
    assert unpacked_prompt(packed(LogprobsTensors(*none))) is None


@pytest.mark.parametrize(
    ("params", "num_prompt", "says"),
    [
        ({}, 1 << 20, None),
        ({"prompt_logprobs": 0}, 1 << 18, None),
        ({"prompt_logprobs": 0}, (1 << 18) + 1, "262145 tokens would be 262145; at most 262144"),
        ({"prompt_logprobs": 20}, 20_000, "would be 420000"),
        ({"prompt_logprobs": -1}, 300, "would be 300300"),
        ({"prompt_logprob_token_ids": [[1]]}, 2, "prompt_logprob_token_ids are not available"),
    ],
)
def test_logprobs_of_a_prompt_beyond_the_limit_are_refused(params, num_prompt, says) -> None:
    refused = pytest.raises(RefusedError, match=says) if says else nullcontext()
    with refused:
        check_prompt_logprobs(SamplingParams(**params), num_prompt, VOCAB_SIZE)


class Streamer:
    """The streamer keeps its requests, and answers each with a choice."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.requests: list[TokenRequest] = []

    def info(self, request_id: str) -> RequestInfo:
        return RequestInfo(route_id=request_id, age_s=0.0, slo=Slo(2.0, 0.1))

    async def stream(self, request: TokenRequest, put: Put) -> None:
        self.requests.append(request)
        put(self.choice)


async def served(choice: Choice, **params: Any) -> tuple[TokenRequest, EngineCoreOutput]:
    """Return the request for ``params``, and what the ingress makes of ``choice``."""
    streamer, refusals = Streamer(choice), list[RefusedError]()
    core = RemoteCore(streamer, lambda _, refusal: refusals.append(refusal), {}, VOCAB_SIZE)
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        mm_features=None,
        sampling_params=SamplingParams(**params, max_tokens=5),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    await core.add_request_async(request)
    async with asyncio.timeout(5):
        (output,) = (await core.get_output_async()).outputs
    assert not refusals
    return streamer.requests[0], output


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"logprobs": 0},
        {"logprobs": 5},
        {"logprobs": -1},
        {"logprobs": VOCAB_SIZE},
        {"logprob_token_ids": [7, 8]},
        {"logprob_token_ids": list(range(MAX_LOGPROB_TOKEN_IDS))},
    ],
    ids=str,
)
async def test_logprobs_of_a_request_are_asked_of_the_instance_as_they_are(
    params: dict[str, Any],
) -> None:
    request, _ = await served(Choice([5], "length"), **params)
    asked, wanted = msgspec.convert(request.sampling, SamplingParams), SamplingParams(**params)
    assert asked.num_logprobs == wanted.num_logprobs
    assert (asked.logprobs, asked.logprob_token_ids) == (wanted.logprobs, wanted.logprob_token_ids)


def lists(*rows: list[tuple[int, float]], ranks: list[int]) -> LogprobsLists:
    """Return a row for each token: that token, then the others, each with its logprob."""
    return LogprobsLists(
        np.array([[token for token, _ in row] for row in rows], dtype=np.int32),
        np.array([[logprob for _, logprob in row] for row in rows], dtype=np.float32),
        np.array(ranks, dtype=np.int32),
    )


@pytest.mark.parametrize(
    "given",
    [
        lists([(9, -40.0), (1, -1.0), (2, -2.0)], ranks=[40]),
        lists([(2, -2.0), (1, -1.0), (2, -2.0)], ranks=[2]),
        lists([(1, -1.0)], ranks=[1]),
        lists([(7, -5.0), (7, -5.0), (8, -2.5)], ranks=[5]),
        lists(
            [(9, -4.0), (1, -1.0)], [(1, -0.5), (1, -0.5)], [(3, -7.0), (4, -1.5)], ranks=[4, 1, 9]
        ),
        lists([(9, -np.inf), (1, -1.0)], ranks=[VOCAB_SIZE]),
    ],
    ids=[
        "not among the likeliest",
        "among them",
        "alone",
        "given ids",
        "three tokens",
        "impossible",
    ],
)
async def test_logprob_columns_are_those_of_the_engine_core(given: LogprobsLists) -> None:
    num_tokens = len(given.sampled_token_ranks)
    item = Item(0, [5] * num_tokens, "length", logprobs=packed(given))
    ((sent,),) = FrameParser().feed(b"".join(frames([item])))
    _, output = await served(sent.choice, logprobs=2)
    found = output.new_logprobs
    assert found is not None
    assert found.logprob_token_ids.tolist() == given.logprob_token_ids.tolist()
    least = np.maximum(found.logprobs, LEAST_LOGPROB)  # as vLLM's API answers
    assert least.tolist() == np.maximum(given.logprobs, LEAST_LOGPROB).tolist()
    assert found.sampled_token_ranks.tolist() == given.sampled_token_ranks.tolist()


async def test_logprob_that_is_no_number_is_the_least_that_is_answered() -> None:
    given = lists([(9, np.nan), (1, -1.0)], ranks=[1])
    _, output = await served(Choice([9], "length", logprobs=packed(given)), logprobs=1)
    assert output.new_logprobs is not None
    assert output.new_logprobs.logprobs.tolist() == [[LEAST_LOGPROB, -1.0]]


async def test_choice_without_logprobs_has_no_logprob_columns() -> None:
    _, output = await served(Choice([5], "length"), logprobs=1)
    assert output.new_logprobs is None


async def test_choice_without_a_token_has_no_logprob_rows() -> None:
    none = LogprobsLists(np.empty((0, 2), np.int32), np.empty((0, 2)), np.empty(0, np.int32))
    _, output = await served(Choice([], "stop", logprobs=packed(none)), logprobs=1)
    assert output.new_logprobs is None or len(output.new_logprobs.logprobs) == 0
