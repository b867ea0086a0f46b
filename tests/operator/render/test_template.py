"""A user's pod template is merged over the operator's pod."""

from typing import Any

import pytest

from macroserve.operator.render.template import for_head, for_ingress, merged, without_devices

POD: dict[str, Any] = {
    "metadata": {"labels": {"own": "1"}},
    "spec": {
        "restartPolicy": "Always",
        "containers": [
            {
                "name": "engine",
                "image": "ours",
                "env": [{"name": "HOME", "value": "/ours"}, {"name": "POD_IP", "value": "ours"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            }
        ],
        "tolerations": [{"key": "not-ready", "tolerationSeconds": 10}],
        "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "cache", "emptyDir": {}}],
    },
}


def engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def container(pod: dict[str, Any], name: str = "engine") -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] == name)


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        ({"spec": {"nodeSelector": {"gpu": "l20"}}}, "nodeSelector", {"gpu": "l20"}),
        ({"spec": {"restartPolicy": None}}, "restartPolicy", None),
        (
            {"spec": {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]}},
            "volumes",
            [
                {"name": "tmp", "emptyDir": {}},
                {"name": "cache", "persistentVolumeClaim": {"claimName": "c"}},
            ],
        ),
        (
            {"spec": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
            "tolerations",
            [
                {"key": "not-ready", "tolerationSeconds": 10},
                {"key": "nvidia.com/gpu", "operator": "Exists"},
            ],
        ),
        (
            {"spec": {"tolerations": [{"key": "not-ready", "tolerationSeconds": 99}]}},
            "tolerations",
            [{"key": "not-ready", "tolerationSeconds": 99}],
        ),
        (
            {"spec": {"tolerations": [{"operator": "Exists"}]}},
            "tolerations",
            [{"key": "not-ready", "tolerationSeconds": 10}, {"operator": "Exists"}],
        ),
        (
            {"spec": {"tolerations": [{"operator": "Exists"}, {"effect": "NoSchedule"}]}},
            "tolerations",
            [
                {"key": "not-ready", "tolerationSeconds": 10},
                {"operator": "Exists"},
                {"effect": "NoSchedule"},
            ],
        ),
        (
            {
                "spec": {
                    "tolerations": [
                        {"key": "gpu", "effect": "NoSchedule"},
                        {"key": "gpu", "effect": "NoExecute"},
                        {"key": "gpu", "effect": "NoExecute", "value": "l20"},
                    ]
                }
            },
            "tolerations",
            [
                {"key": "not-ready", "tolerationSeconds": 10},
                {"key": "gpu", "effect": "NoSchedule"},
                {"key": "gpu", "effect": "NoExecute"},
                {"key": "gpu", "effect": "NoExecute", "value": "l20"},
            ],
        ),
        (
            {"spec": {"tolerations": [{"key": "not-ready", "effect": "NoSchedule"}]}},
            "tolerations",
            [
                {"key": "not-ready", "tolerationSeconds": 10},
                {"key": "not-ready", "effect": "NoSchedule"},
            ],
        ),
        (
            {"spec": {"imagePullSecrets": [{"name": "registry"}]}},
            "imagePullSecrets",
            [{"name": "registry"}],
        ),
    ],
)
def test_template_sets_fields_of_the_pod(
    template: dict[str, Any], path: str, expected: object
) -> None:
    assert merged(POD, template)["spec"].get(path) == expected


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ({"image": "theirs"}, "image", "theirs"),
        (
            {"resources": {"limits": {"nvidia.com/gpu": "2"}}},
            "resources",
            {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "2"}},
        ),
        (
            {"resources": {"requests": {"cpu": "8"}}},
            "resources",
            {"requests": {"cpu": "8", "memory": "1Gi"}},
        ),
        (
            {"env": [{"name": "HOME", "valueFrom": {"x": 1}}, {"name": "NEW", "value": "2"}]},
            "env",
            [
                {"name": "HOME", "valueFrom": {"x": 1}},
                {"name": "POD_IP", "value": "ours"},
                {"name": "NEW", "value": "2"},
            ],
        ),
        (
            {"volumeMounts": [{"name": "big", "mountPath": "/tmp"}]},
            "volumeMounts",
            [{"name": "big", "mountPath": "/tmp"}],
        ),
        (
            {"ports": [{"containerPort": 8000, "hostPort": 80}]},
            "ports",
            [{"containerPort": 8000, "hostPort": 80}],
        ),
        (
            {"ports": [{"containerPort": 53, "protocol": p} for p in ("TCP", "UDP")]},
            "ports",
            [
                {"name": "http", "containerPort": 8000, "protocol": "TCP"},
                {"containerPort": 53, "protocol": "TCP"},
                {"containerPort": 53, "protocol": "UDP"},
            ],
        ),
        (
            {"ports": [{"containerPort": 8000, "protocol": "UDP"}]},
            "ports",
            [
                {"name": "http", "containerPort": 8000, "protocol": "TCP"},
                {"containerPort": 8000, "protocol": "UDP"},
            ],
        ),
    ],
)
def test_template_sets_fields_of_the_container(
    fields: dict[str, Any], path: str, expected: object
) -> None:
    assert container(merged(POD, engine(**fields)))[path] == expected


def test_template_container_of_another_name_is_added() -> None:
    template = {"spec": {"containers": [{"name": "sidecar", "image": "theirs"}]}}
    pod = merged(POD, template)
    assert [c["name"] for c in pod["spec"]["containers"]] == ["engine", "sidecar"]
    assert container(pod) == container(POD)


def test_template_labels_and_annotations_are_added() -> None:
    metadata = {"labels": {"own": "theirs", "team": "a"}, "annotations": {"note": "b"}}
    pod = merged(POD, {"metadata": {**metadata, "name": "theirs"}})
    assert pod["metadata"] == {"labels": {"own": "1", "team": "a"}, "annotations": {"note": "b"}}


@pytest.mark.parametrize("template", [{}, {"metadata": None}, {"spec": {}}])
def test_empty_template_changes_nothing(template: dict[str, Any]) -> None:
    assert merged(POD, template) == POD


def test_template_leaves_the_given_pod_unchanged() -> None:
    before = str(POD)
    merged(POD, engine(image="theirs", env=[{"name": "HOME", "value": "theirs"}]))
    assert str(POD) == before


FULL: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "nodeSelector": {"gpu": "l20"},
        "tolerations": [{"key": "nvidia.com/gpu"}],
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "models"}],
        "containers": [
            {
                "name": "engine",
                "image": "theirs",
                "resources": {"limits": {"nvidia.com/gpu": "2"}},
                "env": [{"name": "HF_TOKEN"}],
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
            },
            {"name": "sidecar"},
        ],
    },
}


def test_head_takes_placement_from_the_template_but_no_device() -> None:
    assert for_head(FULL) == {
        "spec": {
            "imagePullSecrets": [{"name": "registry"}],
            "tolerations": [{"key": "nvidia.com/gpu"}],
        }
    }


def test_ingress_takes_placement_and_model_access_from_the_template() -> None:
    assert for_ingress(FULL) == {
        "spec": {
            "imagePullSecrets": [{"name": "registry"}],
            "tolerations": [{"key": "nvidia.com/gpu"}],
            "volumes": [{"name": "models"}],
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "HF_TOKEN"}],
                    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                }
            ],
        }
    }


def test_template_without_devices_keeps_everything_else() -> None:
    given = engine(
        image="own",
        resources={
            "limits": {"nvidia.com/gpu": 4, "memory": "8Gi"},
            "requests": {"cpu": "2", "nvidia.com/gpu": 4},
            "claims": [{"name": "gpu"}],
        },
    )
    kept = {"limits": {"memory": "8Gi"}, "requests": {"cpu": "2"}}
    assert without_devices(given) == engine(image="own", resources=kept)
    assert without_devices({"spec": {"nodeSelector": {"a": "b"}}}) == {
        "spec": {"nodeSelector": {"a": "b"}}
    }
    assert without_devices({}) == {}
