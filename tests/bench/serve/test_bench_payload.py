"""The bodies that are sent."""

import json

import pytest

from macroserve.bench.serve.client import Conversation
from macroserve.bench.serve.payload import FIRST_TOKEN_ID, Endpoint, PayloadMaker
from macroserve.workload.arrivals import Arrival

REQUEST = Arrival(0.0, num_prompt_tokens=500, num_output_tokens=7)


def maker(endpoint: Endpoint = Endpoint.COMPLETIONS, seed: tuple[int, ...] = (1, 0)):
    return PayloadMaker("some/model", endpoint, vocab_size=32, seed=seed)


def body_of(payloads: PayloadMaker, index: int, request: Arrival) -> bytes:
    return Conversation(payloads, index, request).body()


def test_completion_payload_has_token_ids_of_the_exact_length() -> None:
    body = json.loads(body_of(maker(), 0, REQUEST))
    prompt = body.pop("prompt")
    assert len(prompt) == 500
    assert set(prompt) == set(range(FIRST_TOKEN_ID, 32))
    assert body == {
        "model": "some/model",
        "max_tokens": 7,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_chat_payload_has_as_many_words_as_tokens() -> None:
    body = json.loads(body_of(maker(Endpoint.CHAT), 0, REQUEST))
    [message] = body["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 500
    assert "prompt" not in body


@pytest.mark.parametrize("endpoint", Endpoint)
def test_payloads_are_equal_only_with_equal_seeds(endpoint: Endpoint) -> None:
    body = body_of(maker(endpoint), 3, REQUEST)
    assert body_of(maker(endpoint), 3, REQUEST) == body
    assert body_of(maker(endpoint), 4, REQUEST) != body
    assert body_of(maker(endpoint, seed=(1, 1)), 3, REQUEST) != body
    assert body_of(maker(endpoint, seed=(2, 0)), 3, REQUEST) != body


def test_payload_vocabulary_without_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 10 tokens"):
        PayloadMaker("m", Endpoint.COMPLETIONS, FIRST_TOKEN_ID, (0,))


def shared(endpoint: Endpoint, index: int, block_ids: tuple[int, ...], num_prompt: int) -> list:
    """Return the tokens, or the words, of a prompt with blocks of 32."""
    payloads = PayloadMaker("m", endpoint, vocab_size=2000, seed=(1,))
    request = Arrival(0.0, num_prompt, 7, block_ids=block_ids, block_tokens=32)
    body = json.loads(body_of(payloads, index, request))
    return body["prompt"] if "prompt" in body else body["messages"][0]["content"].split()


@pytest.mark.parametrize("endpoint", Endpoint)
def test_prompts_with_equal_block_ids_share_these_blocks(endpoint: Endpoint) -> None:
    first = shared(endpoint, 0, (4, 5, 6), 96)
    second = shared(endpoint, 1, (4, 5, 7), 96)
    assert len(first) == len(second) == 96
    assert first[:64] == second[:64]
    assert first[64:] != second[64:]
    # A block has the same tokens at any position.
    assert shared(endpoint, 2, (6, 4), 64) == first[64:] + first[:32]


def test_prompt_is_cut_within_its_last_block() -> None:
    assert (
        shared(Endpoint.COMPLETIONS, 0, (4, 5), 40)
        == shared(Endpoint.COMPLETIONS, 1, (4, 5), 64)[:40]
    )


def test_prompt_longer_than_its_blocks_ends_with_tokens_of_its_own() -> None:
    first, second = (shared(Endpoint.COMPLETIONS, index, (4,), 50) for index in (0, 1))
    assert len(first) == 50
    assert first[:32] == second[:32]
    assert first[32:] != second[32:]


def test_blocks_differ_between_runs() -> None:
    request = Arrival(0.0, 32, 7, block_ids=(4,), block_tokens=32)
    first, second = (
        json.loads(body_of(PayloadMaker("m", Endpoint.COMPLETIONS, 2000, seed), 0, request))
        for seed in ((1, 0), (1, 1))
    )
    assert first["prompt"] != second["prompt"]
