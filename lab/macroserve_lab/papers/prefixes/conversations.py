"""Conversations that all instances' caches can hold, and conversations that they cannot."""

from dataclasses import replace

from macroserve.core.request import Slo
from macroserve.workload.lengths import Lognormal
from macroserve.workload.load import SyntheticLoad
from macroserve.workload.multi_turn import MultiTurn
from macroserve_lab.experiment import WARM_UP_S
from macroserve_lab.papers.prefixes.cache_hits import Case, figure_of
from macroserve_lab.papers.prefixes.published import WORLDS

DURATION_S = 300.0
RATES = (1.0, 1.8)
"""Conversations per second. The caches hold those of the first rate, and not those of the second,
which is near what the instances can compute."""

CLUSTER = replace(WORLDS["llm-d"].cluster, max_model_len=40_960)
SLO = Slo(3.0, 0.1)

CONVERSATION = MultiTurn(8, 30.0)
MESSAGE, RESPONSE = Lognormal(2000, 1200), Lognormal(300, 200)


def _case(rate: float) -> Case:
    load = SyntheticLoad(rate, 1.0, MESSAGE, RESPONSE, multi_turn=CONVERSATION)
    return Case(f"{rate:g} conversations/s", CLUSTER, SLO, load, DURATION_S, WARM_UP_S)


FIGURE = figure_of("conversations", [_case(rate) for rate in RATES])
