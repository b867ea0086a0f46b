"""Pipeline stages have costs and gains compared with sharing every layer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.core.scheduler.rounds import LEAST_PIECE_TOKENS
from macroserve.sim.hardware.devices import L20
from macroserve.sim.hardware.host import Host
from macroserve.sim.hardware.links import PCIE_4, Link
from macroserve.sim.hardware.models import MODELS
from macroserve.sim.hardware.pipeline import Pipeline, cut
from macroserve.sim.hardware.step_time import StepTime

MODEL = MODELS["CodeLlama-34B"]
AT_ONCE = Link("no time", 1e18, 0.0)
ALONE = StepTime(MODEL, L20, PCIE_4, Host(0.0, 0.0))


def pipeline(num_stages: int = 4, link: Link = AT_ONCE) -> Pipeline:
    return Pipeline(ALONE, num_stages, link, 2 * MODEL.hidden_size)


def test_pipeline_stage_works_on_a_share_of_the_decodes() -> None:
    stage_s = pipeline().stage_s((), 80, 80 * 500)
    assert stage_s == pytest.approx(ALONE.seconds((), 20, 20 * 500) / 4)
    assert pipeline().seconds((), 80, 80 * 500) == pytest.approx(4 * stage_s)


def test_single_decode_takes_the_same_time_with_any_number_of_stages() -> None:
    alone_s = ALONE.seconds((), 1, 500)
    for num_stages in (1, 2, 8):
        assert pipeline(num_stages).seconds((), 1, 500) == pytest.approx(alone_s)


def test_long_prompt_is_prefilled_in_pieces_at_the_rate_of_all_devices() -> None:
    alone_s = ALONE.seconds([(4096, 0)], 0, 0)
    assert pipeline().seconds([(4096, 0)], 0, 0) == pytest.approx(alone_s / 4, rel=0.2)


def test_short_prompt_passes_whole_and_frees_its_stage() -> None:
    prompt, decode = [(LEAST_PIECE_TOKENS, 0)], (1, 500)
    stage_s = ALONE.seconds(prompt, 0, 0) / 4
    assert pipeline().seconds(prompt, 0, 0) == pytest.approx(stage_s)
    assert pipeline().seconds(prompt * 3, 0, 0) == pytest.approx(3 * stage_s, rel=0.01)
    with_decode_s = ALONE.seconds(prompt, *decode)
    assert pipeline().seconds(prompt, *decode) == pytest.approx(with_decode_s)


def test_pipeline_stages_send_less_than_an_all_reduce() -> None:
    """Pipelines suit links as slow as PCIe for this reason (EcoServe, section 2.3)."""
    reduced = StepTime(replace(MODEL, tensor_parallel=4), L20, PCIE_4, Host(0.0, 0.0))
    prompts = [(1024, 0)] * 4
    assert pipeline(link=PCIE_4).seconds(prompts, 0, 0) < reduced.seconds(prompts, 0, 0)
    slow = Link("slow", 1e9, 1e-3)
    sent_s = 4 * (slow.latency_s + 20 * 2 * MODEL.hidden_size / slow.bytes_per_s)
    step_s = pipeline().seconds((), 80, 80 * 500)
    assert pipeline(link=slow).seconds((), 80, 80 * 500) == pytest.approx(step_s + sent_s)


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 500)), max_size=6),
    st.integers(1, 1000),
)
def test_pieces_of_a_prompt_sum_to_the_prompt(prompts: list[tuple[int, int]], size: int) -> None:
    parts = cut(prompts, size)
    pieces = [piece for part in parts for piece in part]
    for tokens, before in prompts:
        done = 0
        while done < tokens:
            piece, start = pieces.pop(0)
            assert start == before + done
            done += piece
        assert done == tokens, "no piece is of two prompts"
    assert not pieces
    totals = [sum(tokens for tokens, _ in part) for part in parts]
    assert all(total == size for total in totals[:-1])
    assert all(0 < total <= size for total in totals)
