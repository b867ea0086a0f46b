"""``macroserve bench engine``: shared prefixes in stock vLLM and in our engine."""

import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve_lab.bench import engine_pairs  # noqa: E402
from macroserve_lab.bench.quickstart import quickstart_settings  # noqa: E402


@pytest.mark.parametrize("share", engine_pairs.SHARES.values())
def test_load_shares_the_given_part_of_its_prompts(share: float) -> None:
    load = engine_pairs.SharedLoad("load", share)
    prompts, num_shared = load.prompts("seed"), int(share * engine_pairs.PROMPT_TOKENS)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert len({tuple(prompt[:num_shared]) for prompt in prompts}) == engine_pairs.NUM_GROUPS
    assert {len(prompt) for prompt in prompts} == {engine_pairs.PROMPT_TOKENS}
    assert load.prompts("seed") == prompts
    others = {tuple(prompt[:8]) for prompt in load.prompts("another seed")}
    assert not others & {tuple(prompt[:8]) for prompt in prompts}


@pytest.mark.integration
async def test_figures_are_reported_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pairs, "NUM_GROUPS", 2)
    monkeypatch.setattr(engine_pairs, "PROMPTS_PER_GROUP", 3)
    monkeypatch.setattr(engine_pairs, "NUM_ALONE", 2)
    figures = await engine_pairs.measure_prefixes(quickstart_settings(), num_rounds=1)
    assert set(figures) == {
        f"engine.prefix.{name}.{load}"
        for name in ("speedup_of_stock", "prediction_error")
        for load in engine_pairs.SHARES
    }
    assert all(0 < figure < 100 for figure in figures.values())
