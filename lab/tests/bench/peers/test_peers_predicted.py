"""The simulator predicts the points of rehearsed engines."""

import pytest

from macroserve.core.request import Slo
from macroserve.workload.arrivals import Arrival
from macroserve_lab.bench.peers.loads import WHOLE, RequestLoad
from macroserve_lab.bench.peers.predicted import Prediction
from macroserve_lab.bench.peers.rehearsed import Rehearsed
from macroserve_lab.bench.peers.rows import RowLoad
from macroserve_lab.bench.peers.sweep import Sweep

REHEARSED = Rehearsed("L20-48GB", "CodeLlama-34B", tensor_parallel=4, scale=2.0, seed=3)
ROWS = [Arrival(0.0, 1000, 100), Arrival(0.0, 2000, 50)]


def predicted(*deployments: str) -> dict[str, float]:
    load = RequestLoad("azure_conv", (), RowLoad(rate=1.0, cv=1.0, rows=ROWS), WHOLE)
    sweep = Sweep(2, deployments, {"azure_conv": (0.5, 40.0)}, seed=0)
    prediction = Prediction(sweep, {"azure_conv": load}, REHEARSED, 2, Slo(5.0, 0.1), 20.0)
    return prediction.figures()


def test_prediction_has_the_figures_of_each_rate() -> None:
    found = predicted("macroserve", "vllm_router_round_robin")
    for name in ("macroserve", "vllm_router_round_robin"):
        calm, flooded = (f"peers.{name}.azure_conv.{rate}.predicted_" for rate in (0.5, 40))
        assert found[calm + "attainment"] == 1.0 > found[flooded + "attainment"]
        assert 100 < found[calm + "ttft_p50_ms"] < 1000
        assert 10 < found[calm + "tpot_p50_ms"] < 100
    assert found["peers.macroserve.azure_conv.40.predicted_refused_share"] > 0
    assert found == predicted("macroserve", "vllm_router_round_robin"), "it repeats"


@pytest.mark.parametrize("deployment", ["vllm_router_cache_aware", "dynamo_kv"])
def test_router_that_is_not_simulated_has_no_prediction(deployment: str) -> None:
    assert predicted(deployment) == {}
