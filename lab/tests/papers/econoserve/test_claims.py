"""EconoServe's claims in the simulator: each test fails if a difference changes its sign.

All of them are of OPT-13B on one A100. Claims of the opposite sign here
are in ``test_opposite_signs.py``.
"""

from statistics import mean

import pytest
from lab_support.claims.econoserve import (
    BASELINES,
    BEYOND,
    OPT_13B,
    SHARE_GPT,
    Served,
    over_network,
    served,
    served_with_more_memory,
    with_less_compute,
)

from macroserve.sim.results import AT_END
from macroserve_lab.papers.econoserve import figures
from macroserve_lab.papers.econoserve.cases import (
    DISTSERVE,
    VARIANTS,
    experiment,
)
from macroserve_lab.papers.measurements import Metric


def test_short_prompts_take_less_time_and_meet_more_targets_than_with_vllm() -> None:
    """Figures 9 and 10, abstract: up to 91 % less completion time, and more targets met."""
    ours, vllm = served("Alpaca", "econoserve"), served("Alpaca", "prefill-first")
    assert Metric.NORMALISED_LATENCY.of(ours) < 0.5 * Metric.NORMALISED_LATENCY.of(vllm)
    assert ours.completion_s < 0.5 * vllm.completion_s
    assert ours.attainment > vllm.attainment + 0.2


def test_compute_decides_as_well_whether_chats_gain() -> None:
    """Figure 9, ShareGPT with the paper's 12 GB, on devices that compute more slowly."""
    ours, *baselines = (
        Metric.NORMALISED_LATENCY.of(
            with_less_compute(experiment(OPT_13B, SHARE_GPT, VARIANTS[name])).serve(
                3.2, 30.0, stop=AT_END
            )
        )
        for name in ("econoserve", *BASELINES)
    )
    assert ours < 0.9 * min(baselines)


def test_known_lengths_take_less_time_than_predicted_ones() -> None:
    """Figure 9: ECONOSERVE and Oracle."""
    oracle, ours = (served("BookCorpus", name) for name in ("econoserve, an oracle", "econoserve"))
    assert Metric.NORMALISED_LATENCY.of(oracle) < 0.9 * Metric.NORMALISED_LATENCY.of(ours)


@pytest.mark.parametrize("name", BEYOND)
def test_kv_pipelining_saves_completion_time(name: str) -> None:
    """Figure 13: 29 % in the mean."""
    assert served(name, "econoserve").completion_s < 0.95 * served(name, "ordered").completion_s


@pytest.mark.parametrize("name", BEYOND)
def test_kv_pipelining_fills_more_of_the_cache(name: str) -> None:
    """Section 3.2: memory that is reserved and not used yet is lent."""
    assert served(name, "econoserve").kv_use > served(name, "ordered").kv_use


@pytest.mark.parametrize("name", BEYOND)
def test_order_of_tasks_saves_completion_time(name: str) -> None:
    """Figure 13: 7 % in the mean."""
    assert served(name, "ordered").completion_s < 0.98 * served(name, "synced").completion_s


@pytest.mark.parametrize("of", [served, served_with_more_memory])
def test_groups_save_little_completion_time(of: Served) -> None:
    """Figure 13, 19 % in the mean: a host takes as long here for a step without a decision."""
    synced, decoupled = (of("ShareGPT", name).completion_s for name in ("synced", "decoupled"))
    assert 0.97 * decoupled < synced < decoupled


def test_order_and_kv_pipelining_let_more_requests_be_in_time() -> None:
    """Figure 13: 21 and 17 % more."""
    synced, ordered, ours = (
        served("ShareGPT", name).attainment for name in ("synced", "ordered", "econoserve")
    )
    assert synced + 0.02 < ordered < ours - 0.02


def test_groups_leave_the_time_between_tokens_as_it_is() -> None:
    """Figure 13, 17 % less in the mean: responses wait before their second token alone."""
    synced, decoupled = (
        mean([result.tpot_s for result in served("ShareGPT", name).results])
        for name in ("synced", "decoupled")
    )
    assert synced == pytest.approx(decoupled, rel=0.05)


def test_fewer_devices_hold_the_goodput_of_distserve() -> None:
    """Figure 12: 73 % fewer."""
    rule = figures.Completed.of(OPT_13B, SHARE_GPT)
    ours = experiment(OPT_13B, SHARE_GPT, VARIANTS["econoserve"], 6, rule)
    theirs = over_network(experiment(OPT_13B, SHARE_GPT, DISTSERVE, 16, rule), 10.0)
    assert theirs.serve(10.0, 20.0).attainment < 0.9 < ours.serve(10.0, 20.0).attainment
