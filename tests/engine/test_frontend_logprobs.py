"""An ingress asks an instance for logprobs and converts the answer."""

from contextlib import nullcontext

import pytest
import torch

from macroserve.engine.tokens import Logprobs, RefusedError, TokenLogprob, TopLogprob
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.outputs import LogprobsTensors  # noqa: E402

from macroserve.engine.vllm.frontend import (  # noqa: E402
    _logprob_fields,
    _logprobs,
)
from macroserve.engine.vllm.prompt_logprobs import (  # noqa: E402
    check_prompt_logprobs,
    packed,
    unpacked,
)

VOCAB_SIZE = 1000


def test_logprobs_of_a_prompt_are_the_same_at_the_ingress() -> None:
    tensors = LogprobsTensors(
        torch.tensor([[5, 6, 7], [8, 9, 8]], dtype=torch.int32),
        torch.tensor([[-0.5, -1.0, -2.0], [-3.0, -0.25, -torch.inf]]),
        torch.tensor([1, 40]),
    )
    found = unpacked(packed(tensors))
    assert found is not None
    assert all(map(torch.equal, found[:3], tensors[:3]))


def test_prompt_of_one_token_has_no_logprobs() -> None:
    none = torch.empty((0, 3), dtype=torch.int32), torch.empty((0, 3)), torch.empty(0)
    assert unpacked(packed(LogprobsTensors(*none))) is None


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


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({}, {}),
        ({"logprobs": 0}, {"logprobs": 1}),
        ({"logprobs": 5}, {"logprobs": 6}),
        ({"logprobs": -1}, {}),
        ({"logprobs": VOCAB_SIZE}, {}),
        ({"logprob_token_ids": [7, 8]}, {"logprob_token_ids": [7, 8, 8], "logprobs": 3}),
    ],
)
def test_logprobs_of_a_request_are_one_more_at_the_instance(params, fields) -> None:
    assert _logprob_fields(SamplingParams(**params), VOCAB_SIZE) == fields


def test_logprob_token_ids_at_the_instance_limit_are_refused() -> None:
    with pytest.raises(RefusedError, match="128 token IDs are requested; at most 127"):
        _logprob_fields(SamplingParams(logprob_token_ids=list(range(128))), VOCAB_SIZE)


def answer(sampled: tuple[int, int], *others: tuple[int, int]) -> Logprobs:
    """Return token ids and ranks as the instance lists them: the sampled one first."""
    tops = tuple(TopLogprob(token, -float(rank), rank) for token, rank in (sampled, *others))
    return Logprobs((TokenLogprob(sampled[0], -float(sampled[1]), sampled[1], tops),))


@pytest.mark.parametrize(
    ("sampled", "others", "params", "columns"),
    [
        ((9, 40), [(1, 1), (2, 2)], {"logprobs": 2}, [9, 1, 2]),
        ((2, 2), [(1, 1), (3, 3)], {"logprobs": 2}, [2, 1, 2]),
        ((3, 3), [(1, 1), (2, 2)], {"logprobs": 2}, [3, 1, 2]),
        ((9, 40), [(1, 1)], {"logprobs": 1}, [9, 1]),
        ((1, 1), [], {"logprobs": 0}, [1]),
        ((2, 2), [(1, 1), (3, 3)], {"logprobs": -1}, [2, 1, 2, 3]),
        ((9, 1), [(7, 1), (8, 2)], {"logprob_token_ids": [7, 8]}, [9, 7, 8]),
        ((7, 5), [(8, 2)], {"logprob_token_ids": [7, 8]}, [7, 8]),
    ],
)
def test_logprob_columns_are_the_sampled_and_the_requested_tokens(
    sampled, others, params, columns
) -> None:
    lists = _logprobs(answer(sampled, *others), SamplingParams(**params))
    assert lists is not None
    assert lists.logprob_token_ids.tolist() == [columns]
    assert lists.sampled_token_ranks.tolist() == [sampled[1]]


def test_logprob_columns_of_a_choice_without_logprobs_are_none() -> None:
    assert _logprobs(None, SamplingParams(logprobs=1)) is None
    assert _logprobs(Logprobs(()), SamplingParams(logprobs=1)) is None
