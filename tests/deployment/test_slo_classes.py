"""A deployment with SLO classes: keys, headers and model names reach the engines and the counts."""

from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.deployment import Up, manifest, running

pytestmark = pytest.mark.integration

CLASSES = [
    {"name": "interactive", "ttft": "1s", "tpot": "1ms", "models": ["tiny-chat"]},
    {"name": "batch", "ttft": "30s", "tpot": "1s", "attainment": 0.5},
]
"""Targets that no request and that every request meets."""

PROMPT = {"prompt": [5] * 20, "max_tokens": 8, "ignore_eos": True}
MESSAGES = {"messages": [{"role": "user", "content": "w1 w2"}], "max_tokens": 8}
BODIES = {
    "/v1/completions": PROMPT,
    "/v1/chat/completions": MESSAGES | {"ignore_eos": True},
    "/v1/responses": {"input": "w1 w2", "max_output_tokens": 8},
    "/v1/messages": MESSAGES,
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "keys").mkdir()
    for name, key in (("batch", "sk-nightly"), ("others", "sk-any")):
        (folder / "keys" / name).write_text(key)
    slo = {"ttft": "2s", "tpot": "100ms", "classes": CLASSES, "allowRequestTargets": True}
    document = manifest(slo=slo, instances=1, mitosis={"lowerBound": 1, "upperBound": 2})
    document["spec"]["api"] = {"servedNames": ["tiny-chat"]}
    with running(folder, document, "--api-keys", str(folder / "keys")) as deployment:
        yield deployment


def post(up: Up, path: str, body: dict, key: str = "sk-any", **headers: str) -> httpx.Response:
    sent = {"Authorization": f"Bearer {key}", **headers}
    return httpx.post(
        up.endpoint + path, json={"model": "tiny-llama", **body}, headers=sent, timeout=60
    )


def counts(up: Up, name: str) -> Counter[str]:
    """Return a metric of the ingresses by class."""
    page = httpx.get(up.state.private + "/metrics", timeout=10).text
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.value:
                found[sample.labels["slo_class"]] += int(sample.value)
    return found


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streams", [False, True])
def test_requests_of_every_api_are_counted_under_their_class(
    up: Up, path: str, streams: bool
) -> None:
    before = counts(up, "macroserve_requests_total")
    attained = counts(up, "macroserve_requests_attained_total")
    body = BODIES[path] | {"stream": streams}
    asked = [
        post(up, path, body),
        post(up, path, body, **{"X-SLO-Class": "interactive"}),
        post(up, path, body | {"model": "tiny-chat"}),
        post(up, path, body | {"model": "tiny-chat"}, key="sk-nightly"),
        post(up, path, body, **{"X-SLO-Class": "batch", "X-SLO-TPOT-Ms": "0.001"}),
    ]
    assert [(each.status_code, each.text) for each in asked if each.status_code != 200] == []
    up.wait_for(lambda: (counts(up, "macroserve_requests_total") - before).total() == 5)
    found = counts(up, "macroserve_requests_total") - before
    assert found == {"default": 1, "interactive": 2, "batch": 2}
    met = counts(up, "macroserve_requests_attained_total") - attained
    assert met == {"default": 1, "batch": 1}


def test_engines_count_what_ended_by_class(up: Up) -> None:
    def ended() -> dict[str, dict[str, int]]:
        (cell,) = httpx.get(
            up.state.private + "/admin/v1/report",
            headers={"Authorization": f"Bearer {up.state.admin_token}"},
        ).json()["cells"]
        return cell["cell"]["ended_by_class"]

    before = ended().get("batch", {"finished": 0, "attained": 0})
    for tpot_ms in ("1000", "0.001"):
        headers = {"X-SLO-Class": "batch", "X-SLO-TPOT-Ms": tpot_ms}
        assert post(up, "/v1/completions", PROMPT, **headers).status_code == 200
    up.wait_for(lambda: ended()["batch"]["finished"] == before["finished"] + 2)
    assert ended()["batch"]["attained"] == before["attained"] + 1


@pytest.mark.parametrize(
    ("key", "headers", "status", "says"),
    [
        ("sk-any", {"X-SLO-Class": "gold"}, 400, "known are: default, interactive, batch"),
        ("sk-nightly", {"X-SLO-Class": "interactive"}, 403, "have the SLO class batch"),
        ("sk-any", {"X-SLO-TTFT-Ms": "soon"}, 400, "must be a number of milliseconds"),
        ("sk-none", {"X-SLO-Class": "batch"}, 401, "API key"),
    ],
)
def test_request_of_another_class_than_it_may_have_is_refused(
    up: Up, key: str, headers: dict[str, str], status: int, says: str
) -> None:
    before = counts(up, "macroserve_requests_total")
    for path, body in BODIES.items():
        answer = post(up, path, body, key, **headers)
        assert answer.status_code == status
        assert says in answer.json()["error"]["message"]
    assert counts(up, "macroserve_requests_total") == before


def test_status_tells_classes_and_the_log_no_key(up: Up) -> None:
    post(up, "/v1/completions", PROMPT, **{"X-SLO-Class": "batch"})
    assert "SLO met by class, last 60 s: default" in up.command("status").stdout
    assert "sk-nightly" not in up.log
