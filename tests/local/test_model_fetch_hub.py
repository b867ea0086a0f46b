"""``macroserve run fetch`` against a hub of this machine, by the Hub's own client."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.deployment import MACROSERVE
from support.manifests import edited
from world.hub_server import COMMIT, Hub

FILES = {"config.json": b"{}", "model.safetensors": b"x" * 1000, "pytorch_model.bin": b"y" * 500}
TIMEOUT_S = 60


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub(("127.0.0.1", 0), "org/m", FILES)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    server.server_close()
    serving.join()


def fetching(folder: Path, hub: Hub, name: str) -> subprocess.Popen[str]:
    """Begin to fetch as in a pod of that name, whose folder /tmp is its own."""
    own = folder / name
    own.mkdir(exist_ok=True)
    (own / "manifest.yaml").write_text(yaml.safe_dump(edited(("spec.model.source", "org/m"))))
    environment = {
        **os.environ,
        "HF_HOME": str(folder / "cache" / "huggingface"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "TMPDIR": str(own),
    }
    return subprocess.Popen(
        [*MACROSERVE, "run", "fetch", "-f", str(own / "manifest.yaml")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors


def test_model_is_fetched_once_by_pods_that_start_together_and_never_again(
    tmp_path: Path, hub: Hub
) -> None:
    for process in [fetching(tmp_path, hub, name) for name in ("a", "b")]:
        end(process)
    downloads = {what: num for what, num in hub.asked.items() if what.startswith("GET")}
    assert downloads == {"GET config.json": 1, "GET model.safetensors": 1}
    # One that begins when the other has fetched all finds it there.
    assert any((tmp_path / name / "macroserve-fetched").exists() for name in ("a", "b"))
    snapshot = tmp_path / "cache/huggingface/hub/models--org--m/snapshots" / COMMIT
    assert (snapshot / "model.safetensors").read_bytes() == FILES["model.safetensors"]

    hub.shutdown()
    hub.server_close()
    end(fetching(tmp_path, hub, "later"))
    assert not (tmp_path / "later" / "macroserve-fetched").exists()
