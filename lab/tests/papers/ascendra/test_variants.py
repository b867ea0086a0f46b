"""Ascendra's variants, which differ in one property each."""

import pytest

from macroserve.core.strategy import Ordering
from macroserve.sim.hardware.models import MODELS
from macroserve_lab.papers.ascendra import figures
from macroserve_lab.papers.ascendra.cases import CHAT, SUMMARIES


def test_ascendra_variants_differ_in_one_setting():
    assert figures.VARIANTS["shortest first"].scenario.strategy.ordering is Ordering.SJF
    assert figures.VARIANTS["1 LP + 2 HP"].scenario.high_priority_ratio == 2 / 3
    fixed = figures.VARIANTS["a fixed HP batch"].scenario.cluster.max_num_seqs
    assert fixed == 128 < figures.VARIANTS["2 LP + 1 HP"].scenario.cluster.max_num_seqs
    for name in ("1 LP + 1 HP", "2 prefill-first", "2 sarathi"):
        cluster = figures.VARIANTS[name].scenario.cluster
        assert (cluster.num_instances, cluster.model) == (2, MODELS["Llama3.1-8B"])
    values = {each.key: 1.0 for each in figures.VARIANT_GAINS.measurements}
    values["variant 2 LP + 1 HP"] = 1.5
    values["variant 1 LP + 1 HP"] = 1.2
    values["variant a fixed HP batch"] = 1.2
    rows = [(row.case, row.ours) for row in figures.VARIANT_GAINS.rows(values)]
    assert rows == [
        (CHAT.name, pytest.approx(50.0)),
        (CHAT.name, pytest.approx(50.0)),
        (CHAT.name, pytest.approx(25.0)),
        (SUMMARIES.name, pytest.approx(20.0)),
        (SUMMARIES.name, pytest.approx(20.0)),
    ]
