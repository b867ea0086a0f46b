"""Files in ShareGPT's format: the selected conversations, and the resulting load."""

import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.workload import sharegpt
from macroserve.workload.load import TextLoad
from macroserve.workload.multi_turn import MultiTurn
from macroserve.workload.sharegpt import Exchange, ShareGpt, estimated_tokens, read_sharegpt

QUESTION, ANSWER = "q" * 40, "a" * 80


def said(*senders: str, text: str = QUESTION) -> dict:
    """Return a conversation in which these speak in turn."""
    return {"id": "x", "conversations": [{"from": each, "value": text} for each in senders]}


@pytest.fixture
def read(tmp_path: Path):
    def write_and_read(*entries: object, text: str | None = None) -> list[tuple[Exchange, ...]]:
        path = tmp_path / "share.json"
        path.write_text(json.dumps(entries) if text is None else text)
        return list(read_sharegpt(path).conversations)

    return write_and_read


def test_read_takes_each_message_of_a_user_and_the_length_of_its_response(read) -> None:
    talk = [("human", QUESTION), ("gpt", ANSWER), ("human", "more?"), ("gpt", "no"), ("human", "x")]
    entry = {"conversations": [{"from": sender, "value": text} for sender, text in talk]}
    assert read(entry) == [(Exchange(QUESTION, 10, 20), Exchange("more?", 2, 1))]


def test_read_counts_with_the_tokenizer_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    path.write_text(json.dumps([said("human", "gpt", text="a b c d e")]))
    [[exchange]] = read_sharegpt(path, lambda text: len(text.split())).conversations
    assert exchange == Exchange("a b c d e", 5, 5)


@pytest.mark.parametrize(
    ("senders", "num_exchanges"),
    [
        (("human", "gpt"), 1),
        (("user", "assistant"), 1),
        (("human", "chatgpt", "human", "bing"), 2),
        (("system", "human", "gpt"), 1),
        (("gpt", "human", "gpt"), 1),
        (("human", "gpt", "gpt", "human"), 1),
        (("human", "gpt", "human", "human", "gpt"), 1),
    ],
)
def test_read_pairs_messages_until_they_no_longer_take_turns(
    read, senders: tuple[str, ...], num_exchanges: int
) -> None:
    [exchanges] = read(said(*senders))
    assert len(exchanges) == num_exchanges


@pytest.mark.parametrize(
    "entry",
    [
        {"id": "x"},
        said(),
        said("human"),
        said("gpt", "gpt"),
        said("human", "human", "gpt"),
        said("human", "gpt", text="short"),
        said("human", "gpt", text=""),
        said("human", "gpt", text="x" * 4097),
    ],
)
def test_read_leaves_out_what_vllm_leaves_out(read, entry: dict) -> None:
    assert len(read(said("human", "gpt"), entry)) == 1
    with pytest.raises(ValueError, match="has no usable conversation"):
        read(entry)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[1]",
        '[{"conversations": 3}]',
        '[{"conversations": [{"from": "human"}]}]',
        '[{"conversations": [{"from": "human", "value": null}]}]',
        '[{"x": ' + "[" * 100_000,
    ],
)
def test_read_of_another_format_raises_a_sentence(read, text: str) -> None:
    with pytest.raises(ValueError, match=r"share\.json is not in ShareGPT's format"):
        read(text=text)


@given(text=st.text())
def test_read_of_any_text_returns_or_raises_a_sentence(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "share.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ValueError, match=r"share\.json"):
        read_sharegpt(path)


def test_read_of_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        read_sharegpt(tmp_path / "none.json")


def test_read_of_a_huge_file_raises_before_it_is_decoded(read, monkeypatch) -> None:
    monkeypatch.setattr(sharegpt, "MAX_OBJECTS", 100)
    with pytest.raises(ValueError, match="has more than 100 objects"):
        read(*[{}] * 101)
    monkeypatch.setattr(sharegpt, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="is larger than"):
        read(said("human", "gpt"))


def test_estimate_is_at_least_a_token_of_any_text() -> None:
    assert [estimated_tokens("x" * length) for length in (0, 1, 4, 5)] == [0, 1, 1, 2]


TEXTS = ShareGpt(
    tuple(
        tuple(Exchange(f"{number}.{turn}", 10 + turn, 20 + turn) for turn in range(1 + number % 4))
        for number in range(20)
    )
)


def test_text_load_sends_first_messages_in_a_random_order_and_again() -> None:
    found = list(islice(TextLoad(2.0, 1.0, TEXTS).arrivals(1), 40))
    texts = [arrival.text for arrival in found]
    assert sorted(texts[:20]) == sorted(each[0].text for each in TEXTS.conversations)
    assert texts[:20] == texts[20:] != sorted(texts[:20])
    assert found[0].block_ids == found[20].block_ids
    assert len({arrival.block_ids for arrival in found}) == 20
    assert not any(arrival.turns for arrival in found)


def test_text_load_of_conversations_sends_their_messages_up_to_the_number_of_turns() -> None:
    load = TextLoad(2.0, 1.0, TEXTS, multi_turn=MultiTurn(3, 5.0))
    for arrival in islice(load.arrivals(1), 20):
        exchanges = TEXTS.conversations[arrival.block_ids[0]][:3]
        sent = [arrival.text, *[turn.text for turn in arrival.turns]]
        assert sent == [exchange.text for exchange in exchanges]
        assert arrival.message_lengths == [exchange.num_message_tokens for exchange in exchanges]


def test_text_load_with_equal_seeds_is_equal_and_with_others_different() -> None:
    load = TextLoad(2.0, 1.0, TEXTS, multi_turn=MultiTurn(3, 5.0))
    first, again, other = (list(islice(load.arrivals(seed), 30)) for seed in (1, 1, 2))
    assert first == again != other


def test_text_load_at_another_rate_changes_only_the_times() -> None:
    slow, fast = (islice(TextLoad(2.0, 1.0, TEXTS).at(rate).arrivals(1), 30) for rate in (1, 4))
    for one, other in zip(slow, fast, strict=True):
        assert one._replace(at_s=0.0) == other._replace(at_s=0.0)
        assert one.at_s == pytest.approx(4 * other.at_s)
