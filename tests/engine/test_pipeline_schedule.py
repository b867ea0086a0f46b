"""vLLM takes on all of a pipeline's micro-batches, scheduled ahead too, as on a GPU."""

import random
from dataclasses import replace

import pytest

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.request import Slo
from macroserve.core.scheduler.rounds import Rounds
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve.engine.vllm.scheduler import MacroserveScheduler  # noqa: E402
from macroserve_lab.dry_run import DryRun  # noqa: E402

pytestmark = pytest.mark.integration

NUM_REQUESTS = 40


class AheadRun(DryRun):
    """A batch more than there are stages is under way, as with vLLM's second model runner, whose
    scheduler passes over a decode for as many steps as there are stages."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings, MacroserveScheduler)
        self._scheduler.use_v2_model_runner = True
        self._max_ahead = settings.pipeline_parallel


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_vllm_takes_on_each_micro_batch_whole(
    is_ahead: bool, stages: int, settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = replace(settings, slo=Slo(600.0, 60.0), pipeline_parallel=stages, prefix_caching="Off")
    run = AheadRun(kept) if is_ahead else DryRun(kept, MacroserveScheduler)
    promise, fell_short = Rounds.promise, list[str]()

    def checked(self: Rounds, batch: Batch, taken: BatchResult) -> None:
        tokens = {**dict.fromkeys(batch.decodes, taken.decoded), **taken.emitted}
        fell_short.extend([name for name in batch.decodes if not tokens[name]])
        fell_short.extend(
            [p.request_id for p in batch.prefills if taken.prefilled[p.request_id] < p.num_tokens]
        )
        promise(self, batch, taken)

    monkeypatch.setattr(Rounds, "promise", checked)
    rnd = random.Random(1)
    for _ in range(NUM_REQUESTS):
        run.add(rnd.randint(1, 700), rnd.randint(1, 60))
    while run.num_unfinished:
        run.step()
    assert not fell_short
