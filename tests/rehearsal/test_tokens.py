"""Tokens of a rehearsal survive decoding and encoding, and follow the prompt and the position."""

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from macroserve.local.tiny_model import ensure_tiny_model
from macroserve.rehearsal.tokens import NAMING_TOKENS, Answers


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(ensure_tiny_model()))


def answer(answers: Answers, prompt: list[int], length: int) -> list[int]:
    return answers.tokens(answers.name(prompt), len(prompt), length)


def test_answer_is_the_same_after_decoding_and_encoding(tokenizer: PreTrainedTokenizerBase) -> None:
    answers = Answers.of(tokenizer, len(tokenizer))
    tokens = answer(answers, [5, 6, 7], 200)
    text = tokenizer.decode(tokens)
    assert tokenizer.encode(text, add_special_tokens=False) == tokens
    assert len(set(tokens)) > 50


def test_answer_that_another_instance_continues_is_the_same() -> None:
    answers, prompt = Answers.of(None, 2000), list(range(100, 100 + NAMING_TOKENS))
    whole = answer(answers, prompt, 50)
    assert answer(answers, [*prompt, *whole[:20]], 30) == whole[20:]


def test_answers_to_different_prompts_differ() -> None:
    answers = Answers.of(None, 2000)
    assert answer(answers, [1, 2, 3], 20) != answer(answers, [1, 2, 4], 20)


def test_answers_without_a_tokenizer_are_tokens_of_the_vocabulary() -> None:
    tokens = answer(Answers.of(None, 2000), [1], 500)
    assert min(tokens) >= 1000 and max(tokens) < 2000


@pytest.mark.parametrize(("acceptance", "mean"), [(0.0, 0.0), (0.7, 1.533), (1.0, 3.0)])
def test_drafts_are_accepted_with_their_probability(acceptance: float, mean: float) -> None:
    answers = Answers.of(None, 2000, acceptance)
    numbers = [answers.num_accepted(name, 10, 3) for name in range(2000)]
    # 0.7 + 0.7^2 + 0.7^3
    assert sum(numbers) / len(numbers) == pytest.approx(mean, abs=0.08)
