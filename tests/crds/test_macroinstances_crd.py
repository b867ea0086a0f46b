"""CRD and manifest agree on fields, defaults and bounds."""

import copy
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from support import crd
from support.manifests import GOOD

from macroserve.api.manifest import ManifestError, Spec, parse
from macroserve.core.accelerators import PEAKS
from macroserve.core.strategies import STRATEGIES
from macroserve.operator.admission import spec as admission
from macroserve.operator.k8s import names


class Pair(NamedTuple):
    """A field of the manifest and its schema in the CRD."""

    path: str
    field: FieldInfo
    schema: dict[str, Any]
    required: bool

    @property
    def part(self) -> type[BaseModel] | None:
        kinds = (self.field.annotation, *get_args(self.field.annotation))
        return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)

    @property
    def has_constant_default(self) -> bool:
        field = self.field
        return not field.is_required() and not field.default_factory and field.default is not None


def pairs(part: type[BaseModel] = Spec, path: str = "spec") -> Iterator[Pair]:
    schema = crd.fields_at(path)
    for field in part.model_fields.values():
        name = str(field.alias)
        inner = schema["properties"].get(name, {})
        pair = Pair(f"{path}.{name}", field, inner, name in schema.get("required", ()))
        yield pair
        if pair.part:
            yield from pairs(pair.part, pair.path)


PAIRS = list(pairs())
PATHS = [pair.path for pair in PAIRS]
each = pytest.mark.parametrize("pair", PAIRS, ids=PATHS)


def test_manifest_fields_of_every_depth_are_compared() -> None:
    assert {"spec.engine.kvCacheMemory", "spec.autoscaling.stabilization.up"} <= set(PATHS)
    assert len(PATHS) > 35


@pytest.mark.parametrize(
    ("path", "part"), [("spec", Spec), *((p.path, p.part) for p in PAIRS if p.part)]
)
def test_crd_fields_equal_the_manifests(path: str, part: type[BaseModel]) -> None:
    assert set(crd.fields_at(path)["properties"]) == {
        str(f.alias) for f in part.model_fields.values()
    }


@each
def test_crd_required_fields_equal_the_manifests(pair: Pair) -> None:
    assert pair.required == pair.field.is_required()


@each
def test_crd_has_every_constant_default(pair: Pair) -> None:
    """A field whose default depends on another (maxBatchTokens) or is empty has none in the CRD."""
    assert ("default" in pair.schema) == pair.has_constant_default


def test_crd_defaults_equal_the_manifests() -> None:
    document = copy.deepcopy(GOOD)
    document["spec"]["autoscaling"] = {"minInstances": 1, "maxInstances": 8}
    stored = crd.defaulted(document)
    assert parse(stored) == parse(document)
    assert stored["spec"]["autoscaling"]["stabilization"] == {"up": "0s", "down": "300s"}
    assert stored["spec"]["scheduling"]["strategy"] == "unified"
    assert "maxBatchTokens" not in stored["spec"]["engine"]


def literals(annotation: Any) -> set[object]:
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return set().union(*map(literals, get_args(annotation)))


@each
def test_crd_enums_equal_the_manifests(pair: Pair) -> None:
    values = literals(pair.field.annotation)
    if pair.path in ("spec.engine.hybridCache", "spec.engine.prefixCaching"):
        values |= {True, False}  # as YAML 1.1 reads a bare On or Off
    elif pair.path == "spec.scheduling.strategy":
        values = set(STRATEGIES)
    elif pair.path == "spec.engine.rehearse":
        values = set(PEAKS)
    elif pair.path == "spec.priority.highPriorityRatio":
        assert pair.schema["pattern"] == f"^{values.pop()}$"
    assert set(pair.schema.get("enum", ())) == values


MARKS: tuple[tuple[Any, str], ...] = (
    (annotated_types.Ge, "ge"),
    (annotated_types.Gt, "gt"),
    (annotated_types.Le, "le"),
    (annotated_types.Lt, "lt"),
)
SANITY = {"spec.instances": {"le": 1000}, "spec.autoscaling.maxInstances": {"le": 1000}}
"""Of Kubernetes only: a slip of the finger shall not ask an API server for a million pods."""


@each
def test_crd_bounds_of_numbers_equal_the_manifests(pair: Pair) -> None:
    """Durations and sizes are strings here, and numbers there: see the values below."""
    if pair.schema.get("type") not in ("integer", "number") or "enum" in pair.schema:
        return
    wanted = {
        name: getattr(mark, name)
        for mark in marks(pair.field)
        for kind, name in MARKS
        if isinstance(mark, kind)
    }
    assert bounds(pair.schema) == wanted | SANITY.get(pair.path, {})


def marks(field: FieldInfo) -> Iterator[object]:
    """Yield the constraints of a field, also where it may be left out."""
    yield from field.metadata
    for kind in get_args(field.annotation):
        for inner in getattr(kind, "__metadata__", ()):
            yield from inner.metadata if isinstance(inner, FieldInfo) else [inner]


def bounds(schema: dict[str, Any]) -> dict[str, object]:
    found = {}
    for side, inclusive, exclusive in (("minimum", "ge", "gt"), ("maximum", "le", "lt")):
        if side in schema:
            is_exclusive = schema.get(f"exclusive{side.capitalize()}")
            found[exclusive if is_exclusive else inclusive] = schema[side]
    return found


CLASS = {"name": "chat", "ttft": "1s", "tpot": "50ms"}
CASES = [
    ("spec.model.source", ["tiny", "org/model", "", None, 7]),
    ("spec.model.servedName", ["chat", "", ["a"]]),
    ("spec.model.maxModelLen", [16, 15, "4096"]),
    ("spec.model.cache", [{"claim": "models"}, {"image": "r/m:1", "readOnly": True}, "models"]),
    (
        "spec.model.cache.hostPath",
        ["/m", "/var/lib/m/", "/a..b/..c", "/.a/./b", "m", "/", "/..", "/a/../b", "/a/..", "", 7],
    ),
    ("spec.model.cache.claim", ["models", "a.b-c", "Models", "", "a/b", "-a", 7]),
    (
        "spec.model.adapters",
        [
            [{"name": "a", "source": "b"}],
            [{"name": "a"}],
            [{"name": "a", "source": ""}],
            [{"name": "a", "source": "b", "rank": 8}],
            ["a"],
            {},
        ],
    ),
    ("spec.engine.type", ["vLLM", "Emulated", "vllm"]),
    ("spec.engine.tensorParallel", [2, 0, 1.5]),
    ("spec.engine.hybridCache", ["Auto", "Off", False, True, "On", "off", 1]),
    ("spec.engine.prefixCaching", ["Auto", "Off", False, True, "On", "off", 1]),
    ("spec.engine.dtype", ["auto", "bfloat16", "int8"]),
    ("spec.engine.blockSize", [16, 128, 48, "32"]),
    ("spec.engine.kvCacheMemory", ["2GiB", "1KiB", "256MB", "1.5GiB", "-1GiB", "", 268435456]),
    ("spec.engine.hostCacheMemory", ["64GiB", "1KiB", "Auto", "64Gi", "", 268435456]),
    ("spec.engine.maxNumSeqs", [1, -3]),
    ("spec.engine.args", [{}, {"seed": 1}, {"maxLogprobs": 5, "quantization": "awq"}, ["seed"]]),
    ("spec.slo.ttft", ["5s", "100ms", "1m30s", "0.5s", "1h1m1s1ms", "5", 5, "-1s", "1 s", "s"]),
    ("spec.slo.tbt", ["200ms", "1 s", "s", 5]),
    ("spec.slo.tpot", ["1s", "1..5s", "1.s", ".5s", "1us", "1S", "٣s", "9" * 400 + "h"]),
    ("spec.slo.attainment", [0.9, 0.01, 1, 0, "90%"]),
    ("spec.slo.allowRequestTargets", [True, "yes"]),
    (
        "spec.slo.classes",
        [
            [],
            [CLASS],
            [CLASS | {"tbt": "200ms", "attainment": 0.5, "share": 0.5, "models": ["llama"]}],
            [CLASS | {"name": "a" * 32}],
            [CLASS | {"name": "a" * 33}],
            [CLASS | {"name": "-a"}],
            [CLASS | {"attainment": 1}],
            [CLASS | {"share": 0}],
            [CLASS | {"models": [""]}],
            [CLASS | {"models": "llama"}],
            [CLASS | {"weight": 1}],
            [CLASS | {"name": f"c{i}"} for i in range(17)],
            [{"name": "chat"}],
            {},
        ],
    ),
    ("spec.instances", [1, 1000, 0, "3", 1.5]),
    ("spec.mitosis.lowerBound", [1, 0]),
    ("spec.priority.highPriorityRatio", ["Auto", 0, 0.33, 1, -0.1, "auto", "Automatic"]),
    ("spec.scheduling.strategy", ["vllm", "fastest", ["vllm"]]),
    (
        "spec.scheduling",
        [
            {"strategy": "ascendra", "ordering": text}
            for text in (
                *("Auto", "FCFS", "EDF", "Slack", "SJF", "LJF", "a.b_1:c", "m:f"),
                *("edf", "", "module", "a:b:c", "a b:c", ":f", "m:", "a..b:c", "1m:f", "ä:f", 7),
            )
        ],
    ),
    *(
        ("spec.scheduling", [{"strategy": strategy, "tuning": {name: each}} for each in values])
        for strategy, name, values in (
            ("sarathi", "chunkTokens", (1, 1024, 0, 0.5, "512")),
            ("aptserve", "lateValue", (0, 0.4, 1, -0.1, 1.1, "0")),
            ("econoserve", "kvPadding", (0, 0.15, 1, -0.1, 1.1)),
            ("econoserve", "kvReserve", (0, 0.03, -0.1, 1)),
            ("econoserve", "lendingBuffer", (0, 0.15, 1, -0.1, 1.1)),
            ("ascendra", "offloadThreshold", ("0s", "100ms", "100", 5)),
            ("ascendra", "lpBatchSize", (1, 0, "128")),
            ("ascendra", "hpFreeShare", (0, 0.1, -0.1, 1)),
        )
    ),
    ("spec.scheduling.dropLate", [True, "yes"]),
    ("spec.scheduling.maxQueueWait", ["5m", "1h", "5", 300]),
    ("spec.scheduling.maxLateWait", ["20s", "1h", "20", 20]),
    ("spec.autoscaling", [{"minInstances": 3, "maxInstances": 8}, [], {"minInstances": 3}]),
    (
        "spec.autoscaling.stabilization",
        [{"up": "0s"}, {"down": "1m"}, {"up": 0}, {"down": "-5s"}, {"sideways": "1s"}],
    ),
    ("spec.ingress.replicas", [1, 0, 1.5, "2"]),
    ("spec.ingress.maxReplicas", [1, 0, 1.5, "2"]),
    ("spec.ingress", [{"minReplicas": n, "maxReplicas": 9} for n in (1, 0, 1.5, "2")]),
    ("spec.ingress.streamInterval", [1, 10, 0, 1.5, "2"]),
    ("spec.ingress.template", [{}, {"spec": {"nodeSelector": {"pool": "cpu"}}}, "pod"]),
    ("spec.head.template", [{}, {"spec": {"nodeSelector": {"pool": "cpu"}}}, "pod"]),
    ("spec.ingress.apiKeysSecret", ["keys", "team.keys-1", "Keys", "-a", "a" * 254, ""]),
    ("spec.api.servedNames", [["a"], [], [""], "a"]),
    ("spec.api.toolCallParser", ["hermes", 7]),
    ("spec.api.reasoningParser", ["deepseek_r1", 7]),
    ("spec.api.chatTemplate", ["{{ messages }}", "{% if a %}", "chat.jinja", ""]),
    ("spec.api.chatTemplateFile", ["chat.jinja", ""]),
    ("spec.api.chatTemplateConfigMap", [{"name": "chat"}, {"name": "chat", "key": "a b"}, {}, "a"]),
    ("spec.api.defaultChatTemplateKwargs", [{"enable_thinking": False}, ["a"]]),
    ("spec.api.responseRole", ["model", ""]),
    ("spec.api.sseKeepAliveInterval", ["15s", "0s", "15", 15]),
    ("spec.api.fingerprintValue", ["a", ""]),
    ("spec.api.allowedOrigins", [["*"], ["https://a.example"], "*"]),
    ("spec.api.allowedMethods", [["GET"], "*"]),
    ("spec.api.allowedHeaders", [["authorization"], [7]]),
    *(
        (f"spec.api.{name}", [True, "yes"])
        for name in (
            "excludeToolsWhenToolChoiceNone",
            "returnTokensAsTokenIds",
            "enablePromptTokensDetails",
            "enableForceIncludeUsage",
            "enableRequestIdHeaders",
            "allowCredentials",
        )
    ),
    ("spec.api.toolStrictLevel", ["function", "strict"]),
    ("spec.api.chatTemplateContentFormat", ["openai", "text"]),
    ("spec.api.anthropicDisabledThinkingEffort", ["low", "high"]),
    ("spec.api.fingerprintMode", ["custom", "long"]),
    ("spec.template", [{}, {"spec": {"nodeSelector": {"gpu": "l20"}}}, "pod"]),
    ("spec.modell", ["tiny"]),
    ("spec.engine.replicas", [2]),
    ("spec.engine.rehearse", ["H200-141GB", "H200", 200]),
]
VALUES = [(path, value) for path, values in CASES for value in values]


@pytest.mark.parametrize(("path", "value"), VALUES, ids=str)
def test_crd_accepts_a_value_exactly_if_the_manifest_does(path: str, value: object) -> None:
    document = edited(path, value)
    if path.startswith("spec.autoscaling.stabilization"):
        document["spec"]["autoscaling"] |= {"minInstances": 1, "maxInstances": 8}
    assert (crd.refused(document) == []) == is_parsed(document)


def test_crd_values_that_are_tried_cover_every_scalar_field() -> None:
    tried = {path for path, _ in VALUES} | {
        f"{path}.{key}" for path, v in VALUES for key in keys(v)
    }
    alike = {  # their types are those of fields that are tried
        "spec.engine.pipelineParallel",
        "spec.engine.maxBatchTokens",
        "spec.mitosis.upperBound",
    }
    assert {pair.path for pair in PAIRS if not pair.part} <= tried | alike


def keys(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(key for item in value for key in keys(item))
    fields = value if isinstance(value, dict) else {}
    return (*fields, *(f"{key}.{inner}" for key in fields for inner in keys(fields[key])))


def is_parsed(document: dict[str, Any]) -> bool:
    try:
        parse(document)
    except ManifestError:
        return False
    return True


def edited(path: str, value: object) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return document


NAMES = ["llama", "a", "l-2-7b", "a" * 53, "a" * 54, "7b", "-a", "a-", "Llama", "a.b", "a_b", ""]


@pytest.mark.parametrize("name", NAMES)
def test_crd_accepts_a_name_exactly_if_services_can_have_it(name: str) -> None:
    document = edited("metadata.name", name)
    assert (crd.refused(document) == []) == (admission.review("CREATE", None, document, "") == ())
    assert len(names.instances_service("a" * 53)) == 63, "the longest name of a Service"


BAD_TEMPLATES = [
    {"containers": "engine"},
    {"containers": ["engine"]},
    {"containers": [{"image": "x"}]},
    {"containers": [{"name": "engine", "env": [1]}]},
    {"containers": [{"name": "engine", "volumeMounts": {}}]},
    {"containers": [{"name": "engine", "resources": "many"}]},
    {"containers": [{"name": "engine", "resources": {"limits": ["nvidia.com/gpu"]}}]},
    {"initContainers": [None]},
    {"volumes": ["a"]},
    {"tolerations": {"key": "a"}},
    {"imagePullSecrets": ["a"]},
]


@pytest.mark.parametrize("spec", BAD_TEMPLATES, ids=str)
def test_crd_refuses_template_fields_of_a_wrong_type(spec: object) -> None:
    assert crd.refused(edited("spec.template", {"spec": spec}))
