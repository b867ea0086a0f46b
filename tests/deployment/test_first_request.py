"""The command that ``macroserve up`` prints works."""

import json
import subprocess
from pathlib import Path

import pytest
from support.deployment import manifest, running

from macroserve.local.tiny_model import ensure_tiny_model

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("has_template", [True, False])
def test_printed_command_streams_tokens(tmp_path: Path, has_template: bool) -> None:
    checkpoint = ensure_tiny_model(tmp_path / "models")
    if not has_template:
        config = checkpoint / "tokenizer_config.json"
        content = json.loads(config.read_text())
        del content["chat_template"]
        config.write_text(json.dumps(content))
    model = {"source": str(checkpoint), "servedName": "tiny", "maxModelLen": 512}
    document = manifest(
        model=model,
        instances=1,
        mitosis={"lowerBound": 1, "upperBound": 2},
        ingress={"replicas": 1},
    )
    with running(tmp_path, document) as up:
        first = next(i for i, line in enumerate(up.lines) if line.startswith("  curl "))
        command = "\n".join(up.lines[first : first + 2])
        answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert '"choices"' in answer.stdout and answer.stdout.endswith("data: [DONE]\n\n")
    assert ("chat.completion.chunk" in answer.stdout) == has_template
