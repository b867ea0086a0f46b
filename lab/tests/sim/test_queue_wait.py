"""The predicted queueing time, by which requests are refused, against the actual one."""

from statistics import median

import pytest

from macroserve.core.routing.queue_wait import cell_queue_wait_s
from macroserve.core.strategies import STRATEGIES
from macroserve.sim.result_collector import ResultCollector
from macroserve.sim.results import AT_END
from macroserve.sim.router import CellRouter
from macroserve_lab.papers.ascendra.cases import CHAT, STARVED, Case, experiment


@pytest.mark.parametrize("case", [CHAT, STARVED], ids=lambda case: case.model)
@pytest.mark.parametrize("strategy", ["vllm", "ecoserve"])
def test_predicted_queue_wait_is_within_a_factor_of_two(
    monkeypatch: pytest.MonkeyPatch, case: Case, strategy: str
) -> None:
    """First come, first served, and three times what the instances can do. Prefills are held up
    by decodes in one case, and by a lack of memory in the other."""
    predicted: dict[str, float] = {}
    ratios: list[float] = []
    assign, ended = CellRouter.assign, ResultCollector.ended

    def assigning(self, route, now):
        wait_s = cell_queue_wait_s(self.ledger("instance-0").views)
        predicted.setdefault(route.request.request_id, wait_s or 0.0)
        return assign(self, route, now)

    def ending(self, record):
        waited_s = record.first_s - record.request.arrival_s
        if waited_s > 30.0:
            ratios.append(predicted[record.request.request_id] / waited_s)
        ended(self, record)

    monkeypatch.setattr(CellRouter, "assign", assigning)
    monkeypatch.setattr(ResultCollector, "ended", ending)
    experiment(case, STRATEGIES[strategy]).serve(20.0, 60.0, stop=AT_END)
    assert len(ratios) > 100
    assert 0.5 < median(ratios) < 2.0
