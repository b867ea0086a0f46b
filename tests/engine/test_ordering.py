"""The order of waiting requests is the strategy's, a named one or a user's function."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from macroserve.core.strategies import STRATEGIES
from macroserve.core.strategy import Ordering
from macroserve.engine.ordering import EXAMPLE, ordered_strategy

SOURCE = """
calls = []

def by_class(prompt):
    calls.append(prompt)
    return (prompt.slo_class != "gold", )[0] + prompt.num_tokens / 1e6

def fails_later(prompt):
    if prompt.num_tokens == 7:
        raise KeyError("secret")
    if prompt.num_tokens == 8:
        return float("nan")
    return 1

def fails(prompt):
    return 1 / 0

def text(prompt):
    return "1"

def infinite(prompt):
    return float("inf")

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_order.py").write_text(SOURCE)
    (tmp_path / "broken_order.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_order", raising=False)
    return "own_order"


@pytest.mark.parametrize(
    ("text", "ordering"),
    [
        ("Auto", Ordering.SLACK),
        ("FCFS", Ordering.FCFS),
        ("EDF", Ordering.EDF),
        ("Slack", Ordering.SLACK),
        ("SJF", Ordering.SJF),
        ("LJF", Ordering.LJF),
    ],
)
def test_named_ordering_takes_the_place_of_the_strategys(text: str, ordering: Ordering) -> None:
    found = ordered_strategy("ascendra", text)
    assert found == replace(STRATEGIES["ascendra"], ordering=ordering)


def test_function_gets_the_facts_of_a_waiting_request(module: str) -> None:
    key = ordered_strategy("vllm", f"{module}:by_class").ordering
    assert sys.modules[module].calls == [EXAMPLE]
    gold = EXAMPLE._replace(slo_class="gold", num_tokens=10**5)
    assert key(gold) < key(EXAMPLE)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_order:missing", "cannot be imported"),
        ("no_such_module:f", "cannot be imported"),
        ("broken_order:f", "cannot be imported: division by zero"),
        ("own_order:number", "is no function"),
        ("own_order:fails", "fails: ZeroDivisionError: division by zero"),
        ("own_order:text", "returns '1', must return a finite number"),
        ("own_order:infinite", "returns inf, must return a finite number"),
    ],
)
def test_function_that_cannot_be_used_is_refused_at_the_start(
    module: str, name: str, says: str
) -> None:
    with pytest.raises(ValueError) as refused:
        ordered_strategy("vllm", name)
    assert str(refused.value).startswith(f"spec.scheduling.ordering {name} ")
    assert says in str(refused.value)


def test_function_that_fails_later_leaves_requests_by_deadline_and_says_so_once(
    module: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = ordered_strategy("vllm", f"{module}:fails_later").ordering
    with caplog.at_level(logging.ERROR):
        found = [key(EXAMPLE._replace(num_tokens=num)) for num in (6, 7, 8)]
    assert found == [1.0, EXAMPLE.deadline_s, EXAMPLE.deadline_s]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
