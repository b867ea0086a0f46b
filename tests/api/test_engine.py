"""The sizes and arguments of an engine are checked against each other."""

import pytest
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse

MTP = ("spec.engine.args.speculativeConfig", {"method": "mtp"})


def test_manifest_whose_batch_is_smaller_than_its_sequences_is_refused() -> None:
    sizes = ("spec.engine.maxNumSeqs", 64), ("spec.engine.maxBatchTokens", 63)
    with pytest.raises(ManifestError, match=r"maxBatchTokens is 63, must be at least .* is 64"):
        parse(edited(*sizes))


def test_manifest_with_two_sizes_of_the_cache_is_refused() -> None:
    share = ("spec.engine.args", {"gpuMemoryUtilization": 0.8})
    assert parse(edited(share)).spec.engine.args == {"gpu_memory_utilization": 0.8}
    parse(edited(share, ("spec.engine.kvCacheMemory", "Auto")))
    with pytest.raises(ManifestError, match="kvCacheMemory decides it unless that is Auto"):
        parse(edited(share, ("spec.engine.kvCacheMemory", "8GiB")))


@pytest.mark.parametrize(
    ("field", "value", "condition"),
    [
        ("type", "Emulated", ", because an Emulated engine drafts no tokens"),
        ("hybridCache", "On", " if spec.engine.hybridCache is On"),
        ("pipelineParallel", 2, " if spec.engine.pipelineParallel is above 1"),
    ],
)
def test_drafts_beside_what_excludes_them_are_refused(
    field: str, value: object, condition: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited((f"spec.engine.{field}", value), MTP))
    assert str(refused.value) == (
        f"spec.engine.args is a mapping, must be a mapping without speculativeConfig{condition}."
    )


def test_batch_without_room_for_drafts_of_each_sequence_is_refused() -> None:
    with pytest.raises(ManifestError) as refused:
        parse(
            edited(
                ("spec.engine.maxNumSeqs", 64),
                ("spec.engine.maxBatchTokens", 2048),
                ("spec.engine.args.speculativeConfig", {"num_speculative_tokens": 32}),
            )
        )
    assert str(refused.value) == (
        "spec.engine.args is a mapping, must be such that spec.engine.maxBatchTokens, "
        "2048, has room for 1 + num_speculative_tokens of each of the 64 spec.engine.maxNumSeqs."
    )
