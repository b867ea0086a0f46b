"""Decision table of invalid manifests, with the error messages."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.manifests import ABSENT, edited

from macroserve.api.manifest import Manifest, ManifestError, parse
from macroserve.core.accelerators import PEAKS
from macroserve.core.strategies import STRATEGIES

COUNT = "a whole number of at least 1"
TARGET = "a duration above zero such as 5s, 100ms or 1m30s"
DELAY = "a duration such as 0s, 300s or 1m30s"
SIZE = "Auto or a memory size above zero such as 256MiB or 2GiB"
HOST_SIZE = "a memory size above zero such as 64GiB"
LABEL = "a DNS label: up to 63 of a-z, 0-9 and -, with no - at either end"
RATIO = "Auto or a number from 0 to below 1"
SHARE = "a number above 0 and below 1"
TEXT = "a non-empty string"
SCALAR = "a string, a finite number, true, false, or a list or mapping of such values"
BOUNDS = "at most 1000 values, at most 8 deep"
CHARS = "strings of at most 65536 characters together"
HERMES = "a tool call parser of vLLM (did you mean hermes?)"
JINJA = "a Jinja template, a text with {{ or {%"
STRATEGY = f"one of {', '.join(STRATEGIES)}"
SLO = "a mapping with ttft, tpot, tbt, attainment, classes, allowRequestTargets"
ORDERING = "Auto, FCFS, EDF, Slack, SJF, LJF or a function such as package.module:function"
DEVICE = f"one of {', '.join(PEAKS)}"
BLOCK = "16, 32, 64 or 128 tokens"
TOKENS = "a whole number of tokens, at least 16"


def nested(depth: int) -> dict[str, object]:
    return {"a": nested(depth - 1)} if depth > 1 else {"a": 1}


# path, value given, value as shown, what is allowed
BAD_VALUES = [
    ("apiVersion", "v1", "'v1'", "macroserve.io/v1alpha1"),
    ("kind", "Deployment", "'Deployment'", "MacroInstance"),
    ("metadata", "llama", "'llama'", "a mapping with name"),
    ("metadata.name", "Llama", "'Llama'", LABEL),
    ("metadata.name", "-a", "'-a'", LABEL),
    ("metadata.name", "a-", "'a-'", LABEL),
    ("metadata.name", "a\n", r"'a\n'", LABEL),
    ("metadata.name", "", "''", LABEL),
    ("metadata.name", "a" * 64, f"'{'a' * 56}...", LABEL),
    ("metadata.name", 7, "7", LABEL),
    ("spec.model.source", "", "''", TEXT),
    ("spec.model.source", None, "null", TEXT),
    ("spec.model.servedName", ["a"], "a list", TEXT),
    ("spec.model.maxModelLen", 15, "15", TOKENS),
    ("spec.model.maxModelLen", "4096", "'4096'", TOKENS),
    ("spec.engine.type", "vllm", "'vllm'", "vLLM or Emulated"),
    ("spec.engine.rehearse", "L20", "'L20'", DEVICE),
    ("spec.engine.rehearse", 20, "20", DEVICE),
    ("spec.engine.tensorParallel", 0, "0", COUNT),
    ("spec.engine.tensorParallel", 1.5, "1.5", COUNT),
    ("spec.engine.pipelineParallel", True, "true", COUNT),
    ("spec.engine.hybridCache", "on", "'on'", "Auto, On or Off"),
    ("spec.engine.hybridCache", 1, "1", "Auto, On or Off"),
    ("spec.engine.prefixCaching", "off", "'off'", "Auto, On or Off"),
    ("spec.engine.prefixCaching", 0, "0", "Auto, On or Off"),
    ("spec.engine.dtype", "int8", "'int8'", "auto, float16, bfloat16 or float32"),
    ("spec.engine.blockSize", 48, "48", BLOCK),
    ("spec.engine.blockSize", "32", "'32'", BLOCK),
    ("spec.engine.kvCacheMemory", "0MiB", "'0MiB'", SIZE),
    ("spec.engine.kvCacheMemory", "256MB", "'256MB'", SIZE),
    ("spec.engine.kvCacheMemory", "-1GiB", "'-1GiB'", SIZE),
    ("spec.engine.kvCacheMemory", 268435456, "268435456", SIZE),
    ("spec.engine.hostCacheMemory", "0GiB", "'0GiB'", HOST_SIZE),
    ("spec.engine.hostCacheMemory", "64Gi", "'64Gi'", HOST_SIZE),
    ("spec.engine.hostCacheMemory", "Auto", "'Auto'", HOST_SIZE),
    ("spec.engine.maxNumSeqs", -3, "-3", COUNT),
    ("spec.engine.kvCacheMemory", "auto", "'auto'", SIZE),
    ("spec.engine.maxBatchTokens", 0, "0", COUNT),
    ("spec.engine.args", ["seed"], "a list", "a mapping of vLLM engine arguments"),
    ("spec.engine.args.seed", None, "null", SCALAR),
    ("spec.engine.args.hfOverrides", {"a": [{"b": float("nan")}]}, "a mapping", SCALAR),
    ("spec.engine.args.hfOverrides", {1: 2}, "a mapping", SCALAR),
    ("spec.engine.args.hfOverrides", nested(9), "a mapping", BOUNDS),
    ("spec.engine.args.hfOverrides", {"a": [0] * 1001}, "a mapping", BOUNDS),
    ("spec.engine.args.watermark_config", {"a": "x" * 65537}, "a mapping", CHARS),
    ("spec.engine.args.cpuOffloadGb", float("nan"), "nan", SCALAR),
    ("spec.api.toolCallParser", "hermess", "'hermess'", HERMES),
    ("spec.api.reasoningParser", 7, "7", "a reasoning parser of vLLM"),
    ("spec.api.chatTemplate", "chat.jinja", "'chat.jinja'", JINJA),
    ("spec.api.servedNames", "a", "'a'", "a list of names"),
    ("spec.api.allowedOrigins", "*", "'*'", "a list of origins"),
    ("spec.api.sseKeepAliveInterval", 15, "15", "a duration such as 0s, 15s or 1m30s"),
    ("spec.api.defaultChatTemplateKwargs", {"a": float("inf")}, "a mapping", SCALAR),
    ("spec.api.enableRequestIdHeaders", "yes", "'yes'", "true or false"),
    ("spec.slo", None, "null", SLO),
    ("spec.slo.ttft", 5, "5", TARGET),
    ("spec.slo.ttft", "5", "'5'", TARGET),
    ("spec.slo.ttft", "0s", "'0s'", TARGET),
    ("spec.slo.ttft", "-1s", "'-1s'", TARGET),
    ("spec.slo.ttft", "1 s", "'1 s'", TARGET),
    ("spec.slo.ttft", "٣1s", "'٣1s'", TARGET),
    ("spec.slo.tpot", "9" * 400 + "h", f"'{'9' * 56}...", TARGET),
    ("spec.slo.tbt", "0ms", "'0ms'", TARGET),
    ("spec.slo.tbt", 5, "5", TARGET),
    ("spec.slo.attainment", 1, "1", SHARE),
    ("spec.slo.attainment", 0.0, "0.0", SHARE),
    ("spec.slo.attainment", float("nan"), "nan", SHARE),
    ("spec.slo.attainment", "90%", "'90%'", SHARE),
    ("spec.instances", 0, "0", COUNT),
    ("spec.instances", True, "true", COUNT),
    ("spec.instances", -(10**19), "an integer of more than 18 digits", COUNT),
    ("spec.mitosis.lowerBound", 0, "0", COUNT),
    ("spec.mitosis.upperBound", 2, "2", "at least 2 * spec.mitosis.lowerBound - 1, which is 3"),
    ("spec.priority.highPriorityRatio", 1, "1", RATIO),
    ("spec.priority.highPriorityRatio", -0.1, "-0.1", RATIO),
    ("spec.priority.highPriorityRatio", "auto", "'auto'", RATIO),
    ("spec.priority.highPriorityRatio", False, "false", RATIO),
    ("spec.priority.highPriorityRatio", float("nan"), "nan", RATIO),
    ("spec.scheduling.strategy", "fastest", "'fastest'", STRATEGY),
    ("spec.scheduling.strategy", ["vllm"], "a list", STRATEGY),
    ("spec.scheduling.ordering", "edf", "'edf'", ORDERING),
    ("spec.scheduling.ordering", "module", "'module'", ORDERING),
    ("spec.scheduling.ordering", None, "null", ORDERING),
    ("spec.scheduling.dropLate", "yes", "'yes'", "true or false"),
    ("spec.scheduling.maxQueueWait", "0s", "'0s'", TARGET),
    ("spec.scheduling.maxQueueWait", 300, "300", TARGET),
    ("spec.autoscaling", [], "a list", "a mapping with minInstances, maxInstances, stabilization"),
    ("spec.ingress.replicas", 0, "0", COUNT),
    ("spec.ingress.maxReplicas", 0, "0", COUNT),
    ("spec.ingress.minReplicas", 3, "3", "left out without spec.ingress.maxReplicas"),
    ("spec.ingress.streamInterval", 0, "0", COUNT),
    ("spec.ingress.template", "pod", "'pod'", "a mapping, a pod template"),
    ("spec.head.template", [], "a list", "a mapping, a pod template"),
    ("spec.template", "pod", "'pod'", "a mapping, a pod template"),
]


@pytest.mark.parametrize(("path", "value", "shown", "allowed"), BAD_VALUES)
def test_manifest_with_a_bad_value_names_it_and_the_valid_values(
    path: str, value: object, shown: str, allowed: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited((path, value)))
    assert str(refused.value) == f"{path} is {shown}, must be {allowed}."


MISSING = [
    ("apiVersion", "macroserve.io/v1alpha1"),
    ("metadata.name", LABEL),
    ("spec.model.source", TEXT),
    ("spec.model.maxModelLen", TOKENS),
    ("spec.engine.type", "vLLM or Emulated"),
    ("spec.slo", SLO),
    ("spec.slo.tpot", TARGET),
    ("spec.instances", COUNT),
    ("spec.mitosis", "a mapping with lowerBound, upperBound"),
    ("spec.mitosis.upperBound", COUNT),
]


@pytest.mark.parametrize(("path", "allowed"), MISSING)
def test_manifest_with_a_missing_field_names_it_and_the_valid_values(
    path: str, allowed: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited((path, ABSENT)))
    assert str(refused.value) == f"{path} is missing, must be {allowed}."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
PATHS = sorted({row[0] for row in BAD_VALUES + MISSING if "\n" not in row[0]})


def parsed_or_refused(document: object) -> None:
    try:
        manifest = parse(document)
    except ManifestError as refused:
        assert refused.problems
        for problem in refused.problems:
            assert problem.endswith(".") and len(problem.splitlines()) == 1
    else:
        assert isinstance(manifest, Manifest)


@given(JSON)
@example({None: 1, 2: 3, "\ud800": 4, "[key]": 5, "kind": 10**5000})
def test_manifest_from_any_document_is_parsed_or_refused(document: object) -> None:
    parsed_or_refused(document)


@given(path=st.sampled_from(PATHS), value=JSON, extra=st.text())
def test_manifest_with_any_value_in_any_field_is_parsed_or_refused(
    path: str, value: object, extra: str
) -> None:
    parsed_or_refused(edited((path, value)))
    parent = path.rpartition(".")[0]
    parsed_or_refused(edited((f"{parent}.x{extra}".lstrip("."), value)))
