"""A manifest, a load and devices for tests of ``macroserve simulate``."""

from typing import Any

MANIFEST: dict[str, Any] = {
    "apiVersion": "macroserve.io/v1alpha1",
    "kind": "MacroInstance",
    "metadata": {"name": "wanted"},
    "spec": {
        "model": {"source": "mistralai/Mistral-7B-v0.1", "maxModelLen": 4096},
        "engine": {"type": "vLLM"},
        "slo": {"ttft": "1s", "tpot": "100ms"},
        "instances": 3,
        "mitosis": {"lowerBound": 1, "upperBound": 2},
    },
}
LOAD = ("--rate", 4, "--prompt-tokens", "lognormal:mean=340,median=148", "--output-tokens", 50)
PLACE = ("--device", "A100-80GB", "--model", "Mistral-7B")
