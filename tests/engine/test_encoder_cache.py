"""A request that leaves gives its images' places in the encoder's cache up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from macroserve.core.scheduler.candidates import Candidates
from macroserve.engine.settings import EngineSettings
from macroserve.engine.vllm.environment import prepare_environment
from macroserve_lab.bench.kind_models import build

prepare_environment()

from support.offline_engine import InstanceEngine, instance_args, offline_engine  # noqa: E402
from support.pictures import picture  # noqa: E402
from vllm.inputs import TextPrompt  # noqa: E402

from macroserve_lab.bench.offline_engine import forced_async  # noqa: E402

pytestmark = pytest.mark.integration

NUM_TOKENS = 6
BATCH_TOKENS = 64
"""An image has more, so that a step ends within it, and the encoder's cache has room for one."""


@pytest.fixture(scope="module")
def engine(
    small_settings: EngineSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InstanceEngine]:
    settings = replace(
        small_settings,
        model=str(build(tmp_path_factory.mktemp("vlm"), "vlm")),
        max_model_len=512,
        max_batch_tokens=BATCH_TOKENS,
        kv_cache_bytes=16 << 20,
        prefix_caching="Off",
        args={},
    )
    with forced_async(), offline_engine(instance_args(settings)) as started:
        yield started


def add(engine: InstanceEngine, name: str, seed: int) -> None:
    shown: dict[str, Any] = {"image": [picture(seed)]}
    prompt = TextPrompt(prompt="w1 w2 <image> w3", multi_modal_data=shown)
    engine.add(name, prompt, NUM_TOKENS)


def add_until_within_its_image(engine: InstanceEngine, name: str, seed: int) -> None:
    add(engine, name, seed)
    while not is_image_held(engine):
        engine.step()
    assert engine.policy.running.prefilling, "the prompt is not computed yet"


def is_image_held(engine: InstanceEngine) -> bool:
    return any(engine.scheduler.encoder_cache_manager.cached.values())


def check_all_given_up(engine: InstanceEngine) -> None:
    """Assert that no image is held, and that one more is answered as before."""
    manager = engine.scheduler.encoder_cache_manager
    assert not is_image_held(engine) and not manager.request_cached_ids
    assert manager.num_freeable_slots == manager.cache_size
    add(engine, "next", 7)
    assert len(engine.finish(200)["next"]) == NUM_TOKENS


def test_request_that_ends_gives_its_image_up(engine: InstanceEngine) -> None:
    add_until_within_its_image(engine, "a", 1)
    assert len(engine.finish(200)["a"]) == NUM_TOKENS
    check_all_given_up(engine)


def test_request_that_is_aborted_within_its_image_gives_it_up(engine: InstanceEngine) -> None:
    add_until_within_its_image(engine, "a", 2)
    engine.abort("a")
    check_all_given_up(engine)


def test_request_that_is_preempted_within_its_image_gives_it_up_and_sees_it_again(
    engine: InstanceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(engine, "undisturbed", 3)
    expected = engine.finish(200)["undisturbed"]
    add_until_within_its_image(engine, "a", 3)
    with monkeypatch.context() as patch:
        patch.setattr(Candidates, "in_order", lambda *_: iter(()))
        engine.preempt(0.0)
        engine.step()
        assert not engine.scheduler.running and not is_image_held(engine)
    assert engine.finish(200)["a"] == expected
    check_all_given_up(engine)
