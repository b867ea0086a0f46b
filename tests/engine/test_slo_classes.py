"""A request in a real engine has the targets of its class, and the ordering goes by them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.slo_classes import BATCH, INTERACTIVE

from macroserve.api.messages import RequestInfo
from macroserve.core.request import DEFAULT_CLASS
from macroserve.core.slo_class import SloClass
from macroserve.core.status import Ended
from macroserve.core.strategy import Ordering
from macroserve.core.tuning import Tuning
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import InstanceEngine, instance_args, offline_engine  # noqa: E402

from macroserve.engine.ordering import ordered_strategy  # noqa: E402

pytestmark = pytest.mark.integration

REQUESTS = (("report-long", BATCH, 900), ("report", BATCH, 500), ("chat", INTERACTIVE, 400))
"""Name, class and tokens of requests, each of which fills most of a batch, in order of arrival."""

OWN = """
def interactive_first(prompt):
    return (0 if prompt.slo_class == "interactive" else 1e9) + prompt.num_tokens
"""


@pytest.fixture(scope="module")
def engine(small_settings: EngineSettings):
    tuning = Tuning(lp_batch_size=99)
    settings = replace(small_settings, strategy="ascendra", ordering="LJF", tuning=tuning)
    with offline_engine(instance_args(settings)) as engine:
        assert engine.policy.config.strategy.ordering is Ordering.LJF
        assert engine.policy.config.tuning == tuning
        yield engine


def add(engine: InstanceEngine, name: str, targets: SloClass, num_tokens: int) -> None:
    info = RequestInfo(route_id=name, age_s=0.0, slo=targets.slo, slo_class=targets.name)
    engine.introduce(info, [3 + len(name)] * num_tokens, 1)


@pytest.fixture
def own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_class_order.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_class_order", raising=False)


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        ("FCFS", ["report-long", "report", "chat"]),
        ("EDF", ["chat", "report-long", "report"]),
        ("Slack", ["chat", "report-long", "report"]),
        ("SJF", ["chat", "report", "report-long"]),
        ("LJF", ["report-long", "report", "chat"]),
        ("own_class_order:interactive_first", ["chat", "report", "report-long"]),
    ],
)
def test_requests_of_two_classes_are_prefilled_in_order(
    engine: InstanceEngine, own_order: None, ordering: str, expected: list[str]
) -> None:
    engine.decide_by(ordered_strategy("ascendra", ordering))
    for work in REQUESTS:
        add(engine, *work)
    engine.outputs.clear()
    engine.finish()
    assert [*engine.outputs] == expected


def test_request_without_an_introduction_has_the_instance_targets(engine: InstanceEngine) -> None:
    engine.decide_by("ascendra")
    engine.add("unknown", [3, 4, 5], 1)
    (seq,) = engine.policy.sequences.values()
    assert (seq.request.slo, seq.request.slo_class) == (engine.policy.config.slo, DEFAULT_CLASS)
    add(engine, "known", BATCH, 3)
    *_, known = engine.policy.sequences.values()
    assert (known.request.slo, known.request.slo_class) == (BATCH.slo, BATCH.name)
    engine.finish()


def test_status_counts_what_ended_by_class(engine: InstanceEngine) -> None:
    engine.decide_by("ascendra")
    never = replace(INTERACTIVE, slo=replace(INTERACTIVE.slo, ttft_s=1e-6))
    for index, targets in enumerate((BATCH, never, BATCH, never, never)):
        add(engine, f"r{index}", targets, 20 + index)
    engine.finish()
    found = engine.policy.status(0.0).ended_by_class
    assert found == {"batch": Ended(2, 2), "interactive": Ended(3, 0)}
