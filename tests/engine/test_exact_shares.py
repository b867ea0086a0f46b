"""vLLM schedules of each prompt what the batch says, whatever order it goes through them in."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from macroserve.core.batch import Batch, BatchResult
from macroserve.core.scheduler.admission import Admission
from macroserve.core.scheduler.blocks import CacheKind
from macroserve.core.scheduler.iteration import IterationInputs, Pick, Plan
from macroserve.core.strategies import STRATEGIES
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from support.offline_engine import InstanceEngine, instance_args, offline_engine  # noqa: E402

pytestmark = pytest.mark.integration

PIECE = 50


def new_ones_first(inputs: IterationInputs, admission: Admission) -> Plan:
    """Begin a long prompt with a piece; later give it one beside whole new prompts, which come
    first."""
    begun = [*inputs.running.prefilling.values()]
    picks = []
    for seq in inputs.waiting:
        share = seq.num_prompt if begun else PIECE
        picks.append(Pick(seq, share, 0, admission.reservation(seq, CacheKind.KV)))
    picks += [Pick(seq, min(PIECE, seq.num_to_prefill), seq.num_computed) for seq in begun]
    return Plan(picks, tuple(inputs.decoding), "new ones first")


@pytest.fixture
def engine(small_settings: EngineSettings, is_async: bool) -> Iterator[InstanceEngine]:
    with offline_engine(instance_args(replace(small_settings, prefix_caching="Off"))) as engine:
        engine.decide_by(replace(STRATEGIES["unified"], batch=new_ones_first))
        yield engine


def test_begun_prompt_takes_nothing_from_new_ones_that_go_before_it(
    engine: InstanceEngine,
) -> None:
    promise, seen = engine.policy.promise, list[list[int]]()

    def watched(batch: Batch, taken: BatchResult) -> None:
        assert taken.prefilled == {p.request_id: p.num_tokens for p in batch.prefills}
        seen.append([p.num_tokens for p in batch.prefills])
        promise(batch, taken)

    engine.policy.promise = watched
    prompt = [*range(3, 303)]
    engine.add("long", prompt, 5)
    engine.step()
    engine.add("short", prompt[:80], 5)
    engine.add("shorter", prompt[:20], 5)
    engine.finish()
    assert seen[:3] == [[PIECE], [80, 20, PIECE], [PIECE]]
