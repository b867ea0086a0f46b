"""Refusals of a manifest that concern several values are also full sentences."""

import pytest
from support.manifests import ABSENT, AUTOSCALING, GOOD, edited

from macroserve.api.manifest import ManifestError, parse

HOST_CACHE = ("spec.engine.hostCacheMemory", "64GiB")
ADAPTER = {"name": "a", "source": "x"}

SENTENCES = [
    (
        edited(("spec.model.sorce", "tiny")),
        "spec.model.sorce is 'tiny', but spec.model has only the fields "
        "source, servedName, maxModelLen, adapters, cache.",
    ),
    (
        edited(("spec.model.cache", {"claim": "m"}), ("spec.engine.args", {"download_dir": "/m"})),
        "spec.engine is a mapping, must be one whose args have no download_dir, because "
        "spec.model.cache sets it.",
    ),
    (
        edited(("status", {})),
        "status is a mapping, but the manifest has only the fields "
        "apiVersion, kind, metadata, spec.",
    ),
    (
        edited(("spec.ingress.a b\n", 1)),
        r"spec.ingress.'a b\n' is 1, but spec.ingress has only the fields replicas, maxReplicas, "
        "minReplicas, apiKeysSecret, streamInterval, template.",
    ),
    (
        edited(("spec.model.adapters", [ADAPTER, ADAPTER])),
        "spec.model.adapters is a list, must be a list with 'a' only once.",
    ),
    (
        edited(("spec.model.adapters", [{"name": "a"}])),
        "spec.model.adapters.0.source is missing, must be a non-empty string.",
    ),
    (
        edited(("spec.model.adapters", [ADAPTER | {"name": "llama"}])),
        "spec is a mapping, must be one whose model.adapters have unique names: 'llama' is not.",
    ),
    (
        edited(("spec.model.adapters", [ADAPTER]), ("spec.api.servedNames", ["a"])),
        "spec is a mapping, must be one whose model.adapters have unique names: 'a' is not.",
    ),
    (
        edited(("spec.model.adapters", [ADAPTER]), ("spec.engine.hybridCache", "On")),
        "spec.engine is a mapping, must be one whose hybridCache is Auto or Off, because "
        "spec.model.adapters change the keys and values that are computed from hidden states.",
    ),
    (
        edited(("spec.engine.args.enableLora", True)),
        "spec.engine.args has the key 'enableLora', which must be left out, because "
        "spec.model.adapters sets it.",
    ),
    (
        edited(("spec.engine.args.schedulerCls", "my.Scheduler")),
        "spec.engine.args has the key 'schedulerCls', which must be left out, "
        "because spec.scheduling.strategy sets it.",
    ),
    (
        edited(("spec.engine.args.enableChunkedPrefill", False)),
        "spec.engine.args has the key 'enableChunkedPrefill', which must be left out, "
        "because spec.scheduling.strategy sets it.",
    ),
    (
        edited(("spec.engine.args.disableChunkedMmInput", True)),
        "spec.engine.args has the key 'disableChunkedMmInput', which must be left out, "
        "because the scheduler may end a batch within an image.",
    ),
    (
        edited(("spec.engine.args.model", "x")),
        "spec.engine.args has the key 'model', which must be left out, "
        "because spec.model.source sets it.",
    ),
    (
        edited(("spec.engine.args.enablePrefixCaching", False)),
        "spec.engine.args has the key 'enablePrefixCaching', which must be left out, "
        "because spec.engine.prefixCaching sets it.",
    ),
    (
        edited(("spec.engine.hybridCache", "On"), ("spec.engine.prefixCaching", True)),
        "spec.engine.prefixCaching is true, must be Auto or Off with spec.engine.hybridCache On.",
    ),
    (
        edited(("spec.engine.type", "Emulated"), HOST_CACHE),
        "spec.engine.hostCacheMemory is '64GiB', must be left out, because an Emulated engine "
        "uses no host memory.",
    ),
    *(
        (
            edited(("spec.engine.type", "vLLM"), (f"spec.engine.{field}", value), HOST_CACHE),
            f"spec.engine.hostCacheMemory is '64GiB', must be left out with spec.engine.{says}.",
        )
        for field, value, says in (
            ("prefixCaching", False, "prefixCaching Off"),
            ("hybridCache", "On", "hybridCache On"),
            ("pipelineParallel", 2, "pipelineParallel above 1"),
            ("rehearse", "L20-48GB", "rehearse"),
        )
    ),
    (
        edited(("spec.engine.type", "Emulated"), ("spec.engine.rehearse", "L20-48GB")),
        "spec.engine.rehearse is 'L20-48GB', must be left out, because an Emulated engine has its "
        "own pace.",
    ),
    (
        edited(("spec.engine.hybridCache", "On"), ("spec.engine.rehearse", "L20-48GB")),
        "spec.engine.hybridCache is 'On', must be Auto or Off with spec.engine.rehearse.",
    ),
    (
        edited(("spec.engine.hybridCache", "On"), ("spec.engine.pipelineParallel", 2)),
        "spec.engine.hybridCache is 'On', must be Auto or Off with spec.engine.pipelineParallel "
        "above 1.",
    ),
    (
        edited(("spec.engine.args.dataParallelSize", 2)),
        "spec.engine.args has the key 'dataParallelSize', which must be left out, because an "
        "instance has one engine, and spec.instances is the number of instances.",
    ),
    (
        edited(("spec.engine.args.max-logprobs", 5)),
        "spec.engine.args has the key 'max-logprobs', which must be named like a vLLM engine "
        "argument, in camelCase or snake_case.",
    ),
    (
        edited(("spec.engine.args", {1: 5})),
        "spec.engine.args has the key 1, which must be named like a vLLM engine "
        "argument, in camelCase or snake_case.",
    ),
    (
        edited(("spec.engine.args", {"maxLogprobs": 5, "max_logprobs": 6})),
        "spec.engine.args is a mapping, must be a mapping with max_logprobs only once.",
    ),
    (
        edited(("spec.engine.args.toolCallParser", "hermes")),
        "spec.engine.args has the key 'toolCallParser', which must be given as "
        "spec.api.toolCallParser.",
    ),
    (
        edited(("spec.engine.args.tensorParalelSize", 2)),
        "spec.engine.args has the key 'tensorParalelSize', which must be an engine argument of "
        "vLLM (did you mean tensorParallelSize?).",
    ),
    (
        edited(("spec.engine.args.tensor_paralel_size", 2)),
        "spec.engine.args has the key 'tensor_paralel_size', which must be an engine argument of "
        "vLLM (did you mean tensor_parallel_size?).",
    ),
    (
        edited(("spec.engine.args.specMethod", "ngram")),
        "spec.engine.args has the key 'specMethod', which must be left out, because "
        "spec.engine.args.speculativeConfig sets it.",
    ),
    (
        edited(("spec.engine.args.speculativeConfig", "ngram")),
        "spec.engine.args is a mapping, must be a mapping whose speculative_config is a mapping.",
    ),
    (
        edited(("spec.engine.args.additionalConfig", {})),
        "spec.engine.args has the key 'additionalConfig', which must be left out, because it "
        "contains the scheduler's own settings.",
    ),
    (
        edited(("spec.engine.args.port", 1)),
        "spec.engine.args has the key 'port', which must be left out, because the ingress sets "
        "its own address.",
    ),
    (
        edited(("spec.engine.args.hfOverrides", "x")),
        "spec.engine.args is a mapping, must be a mapping whose hf_overrides is a mapping.",
    ),
    (
        edited(("spec.engine.args.quantization", "bitsandbytes")),
        "spec.engine.args is a mapping, must be a mapping whose quantization is a method of vLLM.",
    ),
    (
        edited(("spec.engine.args.quantization", "fp8_per_chanel")),
        "spec.engine.args is a mapping, must be a mapping whose quantization is a method of vLLM "
        "(did you mean fp8_per_channel?).",
    ),
    (
        edited(("spec.api", {"chatTemplate": "{{ a }}", "chatTemplateFile": "b.jinja"})),
        "spec.api.chatTemplateFile is 'b.jinja', must be left out where another chat template is "
        "given.",
    ),
    (
        edited(("spec.autoscaling.minInstances", 0), ("spec.autoscaling.maxInstances", 8)),
        "spec.autoscaling.minInstances is 0, must be a whole number of at least 1.",
    ),
    (
        edited(("spec.autoscaling", {"minInstances": 3, "maxInstances": 2})),
        "spec.autoscaling.maxInstances is 2, must be at least spec.autoscaling.minInstances, "
        "which is 3.",
    ),
    (
        edited(("spec.autoscaling", AUTOSCALING), ("spec.autoscaling.stabilization.down", 300)),
        "spec.autoscaling.stabilization.down is 300, must be a duration such as 0s, 300s or 1m30s.",
    ),
    (
        edited(("spec.ingress", {"minReplicas": 3, "maxReplicas": 2})),
        "spec.ingress.minReplicas is 3, must be at most spec.ingress.maxReplicas, which is 2.",
    ),
    (
        edited(("spec.ingress", {"replicas": 3, "maxReplicas": 4})),
        "spec.ingress.maxReplicas is 4, must be left out with spec.ingress.replicas, which fixes "
        "the number.",
    ),
    (
        edited(("spec.autoscaling", AUTOSCALING), ("spec.instances", 1)),
        "spec.instances is 1, must be within spec.autoscaling's bounds, which are 2 to 8.",
    ),
    (
        edited(("spec.autoscaling", AUTOSCALING), ("spec.instances", 9)),
        "spec.instances is 9, must be within spec.autoscaling's bounds, which are 2 to 8.",
    ),
    (
        None,
        "the manifest is null, must be a mapping with apiVersion, kind, metadata, spec.",
    ),
    (
        [GOOD],
        "the manifest is a list, must be a mapping with apiVersion, kind, metadata, spec.",
    ),
]


@pytest.mark.parametrize(("document", "sentence"), SENTENCES)
def test_manifest_refusal_is_one_full_sentence(document: object, sentence: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(document)
    assert str(refused.value) == sentence


def test_manifest_with_several_problems_has_a_line_for_each() -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited(("kind", "Pod"), ("spec.instances", 0), ("spec.slo.ttft", ABSENT)))
    assert refused.value.problems == tuple(str(refused.value).splitlines())
    assert [p.split(" is ")[0] for p in refused.value.problems] == [
        "kind",
        "spec.slo.ttft",
        "spec.instances",
    ]
