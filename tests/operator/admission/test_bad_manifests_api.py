"""A real API server with the CRD refuses bad manifests with helpful messages."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import yaml
from bad_manifests import CASES, GOOD, Case, attempt, create, merged, refused_by
from cluster import ApiCluster, KubectlError
from support import crd

pytestmark = pytest.mark.integration

NUMBERS = count()


class Namespace:
    """The namespace of one test."""

    def __init__(self, cluster: ApiCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self.kubectl("create", "namespace", name)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self._cluster.kubectl("--namespace", self.name, *arguments, input=input)

    def url(self, path: str = "") -> str:
        return f"/apis/macroserve.io/v1alpha1/namespaces/{self.name}/macroinstances{path}"

    def create(self, document: dict[str, Any]) -> None:
        create(self._cluster.kubectl, self.name, document)

    def attempt(self, case: Case) -> None:
        """Apply a manifest. Raise KubectlError."""
        attempt(self._cluster.kubectl, self.name, case)

    def put_status(self, status: dict[str, Any]) -> None:
        """Write the status of the only MacroInstance."""
        (item,) = json.loads(self.kubectl("get", "mi", "-o", "json"))["items"]
        url = self.url(f"/{item['metadata']['name']}/status")
        document = json.dumps(item | {"status": status})
        self.kubectl("replace", "--raw", url, "-f", "-", input=document)

    def items(self) -> list[dict[str, Any]]:
        items = json.loads(self.kubectl("get", "mi", "-o", "json"))["items"]
        return [{field: item[field] for field in ("metadata", "spec")} for item in items]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiCluster]:
    with ApiCluster() as cluster:
        cluster.apply_crd(crd.PATH)
        yield cluster


@pytest.fixture
def namespace(cluster: ApiCluster) -> Namespace:
    return Namespace(cluster, f"case-{next(NUMBERS)}")


@pytest.mark.parametrize("case", refused_by("schema", "cel", "strict"), ids=str)
def test_crd_refuses_a_bad_manifest(namespace: Namespace, case: Case) -> None:
    if case.before:
        namespace.create(case.before)
    before = namespace.items()
    with pytest.raises(KubectlError) as refused:
        namespace.attempt(case)
    assert case.missing_in(refused.value.stderr) == [], refused.value.stderr
    assert namespace.items() == before


def test_cel_cases_are_refused_by_cel_alone() -> None:
    """The schema refuses its own cases even before Kubernetes 1.25, which has no CEL."""
    of_documents = [case for case in CASES if case.scale is None and not case.update]
    for case in of_documents:
        by_schema = crd.refused(crd.defaulted(case.document)) != []
        assert by_schema == (case.refused in ("schema", "strict")), case


@pytest.mark.parametrize("case", refused_by("admission", "Degraded"), ids=str)
def test_crd_accepts_what_the_webhook_refuses(namespace: Namespace, case: Case) -> None:
    if case.before:
        namespace.create(case.before)
    namespace.attempt(case)


def test_good_manifest_is_stored_with_its_defaults(namespace: Namespace) -> None:
    namespace.create(GOOD)
    (stored,) = namespace.items()
    assert stored["spec"] == crd.defaulted(GOOD)["spec"]


@pytest.mark.parametrize("field", ["hybridCache", "prefixCaching"])
@pytest.mark.parametrize("value", ["Auto", '"Off"', "Off", '"On"', "On"])
def test_cache_setting_of_bare_on_or_off_is_accepted(
    namespace: Namespace, value: str, field: str
) -> None:
    """kubectl's YAML reads them as true and false."""
    text = yaml.safe_dump(merged(GOOD, {"spec": {"engine": {field: "HERE"}}}))
    namespace.kubectl("apply", "-f", "-", input=text.replace("HERE", value))
    (stored,) = namespace.items()
    assert stored["spec"]["engine"][field] in ("Auto", "On", "Off", True, False)


def test_scale_subresource_changes_instances_alone(namespace: Namespace) -> None:
    namespace.create(GOOD)
    namespace.kubectl("scale", "mi", "case", "--replicas=3")
    (stored,) = namespace.items()
    assert stored["spec"] == {**crd.defaulted(GOOD)["spec"], "instances": 3}


def test_printer_columns_show_the_status(namespace: Namespace) -> None:
    namespace.create(GOOD)
    status = {
        "ready": "2/3",
        "instances": 3,
        "cellCount": 1,
        "highPriority": 1,
        "attainment": "0.97",
        "selector": "a=b",
    }
    namespace.put_status(status)
    header, row = namespace.kubectl("get", "mi", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "READY", "CELLS", "HP", "ATTAINMENT", "STRATEGY", "AGE"]
    assert row.split()[:-1] == ["case", "2/3", "1", "1", "0.97", "unified"]
    assert "macroinstance.macroserve.io/case" in namespace.kubectl("get", "all")
    scale = json.loads(namespace.kubectl("get", "--raw", namespace.url("/case/scale")))
    assert scale["spec"] == {"replicas": 1}
    assert scale["status"] == {"replicas": 3, "selector": "a=b"}


def test_status_in_a_created_object_is_dropped(namespace: Namespace) -> None:
    namespace.create({**GOOD, "status": {"ready": "9/9"}})
    (stored,) = json.loads(namespace.kubectl("get", "mi", "-o", "json"))["items"]
    assert "status" not in stored
