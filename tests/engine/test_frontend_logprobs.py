"""An ingress asks an instance for logprobs and converts the answer."""

import pytest

from macroserve.engine.tokens import Logprobs, RefusedError, TokenLogprob, TopLogprob
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from vllm.sampling_params import SamplingParams  # noqa: E402

from macroserve.engine.vllm.frontend import (  # noqa: E402
    _logprob_fields,
    _logprobs,
)

VOCAB_SIZE = 1000


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
    with pytest.raises(RefusedError, match="128 token ids are more than the 127"):
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
