"""A manifest applied with ``kubectl apply`` leads to an endpoint that answers."""

import time
from typing import Any

import openai
import pytest
from world.kube import Kube
from world.served import Served, emulated, real
from world.waiting import eventually, throughout

pytestmark = pytest.mark.e2e


def test_emulated_instances_answer_within_a_minute(kube: Kube) -> None:
    served = Served(kube, emulated("llama"))
    started = time.monotonic()
    served.apply()
    served.wait_for_condition("Ready", timeout_s=60)
    assert served.complete()["usage"]["completion_tokens"] == 4
    took_s = time.monotonic() - started
    print(f"Ready and answering after {took_s:.1f} s")
    assert took_s < 60
    client = openai.OpenAI(base_url=served.endpoint + "/v1", api_key="none")
    stream = client.chat.completions.create(
        model="tiny-llama",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=8,
        stream=True,
    )
    assert sum(bool(chunk.choices) for chunk in stream) >= 8
    columns = kube("get", "mi", "llama", "--no-headers").split()
    assert columns[:4] == ["llama", "3/3", "1", "1"], columns
    assert len(kube("get", "mi", "llama", "-o", "wide").splitlines()[0]) < 100
    wait_for_scheduling_state(served)


def wait_for_scheduling_state(served: Served) -> None:
    """Wait until ``kubectl describe`` shows each instance's final figures, which are written every
    ten seconds."""
    # A status from before the requests also looks idle. The operator reads every ten seconds, and
    # writes figures at the earliest ten seconds after the last ones.
    told_from = time.monotonic() + 25

    def instances() -> list[dict[str, Any]]:
        return served.status.get("scheduling", {}).get("instances", [])

    def told() -> list[dict[str, Any]]:
        found = instances()
        is_told = len(found) == 3 and all(is_idle(each) and "stepTime" in each for each in found)
        return found if is_told and time.monotonic() >= told_from else []

    found = eventually(told, 60, describe=served.describe)
    (cell,) = served.status["cells"]
    assert (cell["phases"], cell["kvUsed"]) == ("3 idle", "0.00"), cell
    text = served.kube("describe", "mi", served.name)
    for words in ("Phase Since:", "Predicted Step Time:", "Kv Used:"):
        assert words in text, text
    # No request was refused; probes of a starting ingress do not count.
    assert "Refusals:" not in text, text
    throughout(lambda: instances() == found, 15, describe=served.describe, every_s=1)


def is_idle(instance: dict[str, Any]) -> bool:
    return (instance.get("phase"), instance["running"], instance["waiting"]) == ("idle", 0, 0)


def test_real_vllm_answers(kube: Kube) -> None:
    document = real("real")
    served = Served(kube, document)
    served.apply()
    served.wait_for_condition("Ready", timeout_s=240)
    answers = {served.complete(tokens=12)["choices"][0]["text"] for _ in range(3)}
    assert answers and all(answers)
