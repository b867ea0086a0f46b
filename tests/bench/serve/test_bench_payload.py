"""The bodies that are sent."""

import json

import pytest

from macroserve.bench.serve.payload import FIRST_TOKEN_ID, Endpoint, PayloadMaker
from macroserve.workload.arrivals import Arrival

REQUEST = Arrival(0.0, num_prompt_tokens=500, num_output_tokens=7)


def maker(endpoint: Endpoint = Endpoint.COMPLETIONS, seed: tuple[int, ...] = (1, 0)):
    return PayloadMaker("some/model", endpoint, vocab_size=32, seed=seed)


def test_completion_payload_has_token_ids_of_the_exact_length() -> None:
    body = json.loads(maker().body(0, REQUEST))
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
    body = json.loads(maker(Endpoint.CHAT).body(0, REQUEST))
    [message] = body["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 500
    assert "prompt" not in body


@pytest.mark.parametrize("endpoint", Endpoint)
def test_payloads_are_equal_only_with_equal_seeds(endpoint: Endpoint) -> None:
    body = maker(endpoint).body(3, REQUEST)
    assert maker(endpoint).body(3, REQUEST) == body
    assert maker(endpoint).body(4, REQUEST) != body
    assert maker(endpoint, seed=(1, 1)).body(3, REQUEST) != body
    assert maker(endpoint, seed=(2, 0)).body(3, REQUEST) != body


def test_payload_vocabulary_without_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 10 tokens"):
        PayloadMaker("m", Endpoint.COMPLETIONS, FIRST_TOKEN_ID, (0,))
