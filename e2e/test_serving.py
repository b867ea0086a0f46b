"""A manifest applied with ``kubectl apply`` leads to an endpoint that answers."""

import time

import openai
import pytest
from world.kube import Kube
from world.served import Served, emulated

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


def test_real_vllm_answers(kube: Kube) -> None:
    document = emulated(
        "real",
        engine={
            "type": "vLLM",
            "dtype": "float32",
            "kvCacheMemory": "128MiB",
            "maxBatchTokens": 512,
        },
        instances=1,
        mitosis={"lowerBound": 1, "upperBound": 2},
        priority={"highPriorityRatio": 0.0},
        ingress={"replicas": 1},
    )
    served = Served(kube, document)
    served.apply()
    served.wait_for_condition("Ready", timeout_s=240)
    answers = {served.complete(tokens=12)["choices"][0]["text"] for _ in range(3)}
    assert answers and all(answers)
