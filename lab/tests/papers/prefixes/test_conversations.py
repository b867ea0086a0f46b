"""Conversations that fit in the caches, and ones that do not."""

from macroserve_lab.papers.prefixes.figures import CHAT_CLUSTER as CLUSTER
from macroserve_lab.papers.prefixes.figures import CHAT_RATES as RATES
from macroserve_lab.papers.prefixes.figures import (
    CHATS_S,
    COMPARED,
    CONVERSATION,
    FIGURES,
    MESSAGE,
    RESPONSE,
    CacheHits,
)

NUM_TOKENS = CONVERSATION.num_turns * (MESSAGE.mean + RESPONSE.mean)


def test_conversations_fit_the_model_and_are_measured_at_each_rate() -> None:
    assert NUM_TOKENS < CLUSTER.max_model_len < CLUSTER.num_kv_tokens
    rates: dict[str, float] = {}
    for each in FIGURES["conversations"].measurements:
        assert isinstance(each, CacheHits)
        rates[each.key] = each.load.intensity
    assert sorted(rates.values()) == sorted(RATES * len(COMPARED))


def test_only_the_higher_rate_brings_more_tokens_than_the_caches_hold() -> None:
    thinking_s = (CONVERSATION.num_turns - 1) * CONVERSATION.mean_think_s
    # While it lasts, a conversation has half of its tokens in the mean.
    held = [rate * thinking_s * NUM_TOKENS / 2 for rate in RATES]
    assert held[0] < CLUSTER.num_instances * CLUSTER.num_kv_tokens < held[1]
    assert thinking_s < CHATS_S
