"""``macroserve bench engine``: tokens of a strategy compared to stock vLLM's."""

import pytest
from vllm.v1.engine.llm_engine import LLMEngine

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve_lab.bench import engine_tokens  # noqa: E402
from macroserve_lab.bench.offline_engine import OfflineEngine  # noqa: E402
from macroserve_lab.bench.quickstart import quickstart_settings  # noqa: E402

pytestmark = pytest.mark.integration


def test_tokens_are_those_of_stock_vllm_in_each_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[OfflineEngine] = []
    seen: list[tuple[bool, bool]] = []

    class Watched(OfflineEngine):
        def __init__(self, llm: LLMEngine) -> None:
            super().__init__(llm)
            served.append(self)

        def finish(self, max_steps: int = 5000) -> dict[str, list[int]]:
            tokens = super().finish(max_steps)
            if len(served) > 1:  # the first one is stock vLLM's
                policy = self.llm.engine_core.engine_core.scheduler.policy
                status, is_async = policy.status(0.0), policy.in_flight.num_ahead > 0
                seen.append((is_async, status.cached_tokens > 0))
            return tokens

    monkeypatch.setattr(engine_tokens, "OfflineEngine", Watched)
    figures = engine_tokens.measure_strategies(quickstart_settings(), ("unified",))
    modes = ("sync", "sync_prefixes", "async", "async_prefixes")
    assert figures == {
        "engine.tokens_equal": 1,
        **{f"engine.unified.{mode}.tokens_equal": 1 for mode in modes},
    }
    assert seen == [(False, False), (False, True), (True, False), (True, True)]


def test_share_counts_responses_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = engine_tokens._serve
    served: list[list[list[int]]] = []

    def one_differs(args, work):
        served.append(serve(args, work) if not served else [[], *served[0][1:]])
        return served[-1]

    monkeypatch.setattr(engine_tokens, "_serve", one_differs)
    figures = engine_tokens.measure_strategies(quickstart_settings(), ("unified",))
    assert set(figures.values()) == {1 - 1 / engine_tokens.NUM_REQUESTS}
