"""``macroserve run``: what it refuses, in which words, and how it fails."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.deployment import MACROSERVE, free_port, manifest
from typer.testing import CliRunner

from macroserve.cli.run import run
from macroserve.local.tiny_model import ensure_tiny_model

KINDS = {"head": (), "ingress": (), "instance": ("--name", "instance-0")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "admin-token").write_text("adm1n")
    write(tmp_path)
    return tmp_path


def write(folder: Path, **spec: object) -> None:
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest(**spec)))


def arguments(folder: Path, kind: str, *more: str) -> list[str]:
    files = ["-f", str(folder / "manifest.yaml"), "--tokens", str(folder)]
    return [kind, *files, "--host", "127.0.0.1", *KINDS[kind], *more]


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(run, arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_manifest(folder: Path, kind: str) -> None:
    write(folder, instances="many")
    expected = "error: spec.instances is 'many', must be a whole number of at least 1.\n"
    assert refused(*arguments(folder, kind)) == expected
    assert "cannot be read" in refused(*arguments(folder, kind, "-f", str(folder / "none.yaml")))


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("head", "secret"),
        ("head", "admin-token"),
        ("ingress", "secret"),
        ("instance", "secret"),
    ],
)
def test_a_missing_token(folder: Path, kind: str, token: str) -> None:
    (folder / token).unlink()
    text = refused(*arguments(folder, kind))
    assert text.startswith("error: the ") and text.count("\n") == 1
    assert token in text


def test_api_keys_that_are_not_there(folder: Path) -> None:
    write(folder, ingress={"apiKeysSecret": "keys"})
    assert "API keys" in refused(*arguments(folder, "ingress", "--api-keys", str(folder / "keys")))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("instance", ("--pool", "middle")),
        ("instance", ("--port", "0")),
        ("head", ("--port", "70000")),
        ("ingress", ("--grace", "-1")),
    ],
)
def test_wrong_options(folder: Path, kind: str, more: tuple[str, ...]) -> None:
    assert more[0] in refused(*arguments(folder, kind, *more))


def test_an_instance_wants_its_name(folder: Path) -> None:
    given = [a for a in arguments(folder, "instance") if a not in KINDS["instance"]]
    assert "--name" in refused(*given)


def ended(*arguments: str) -> tuple[int, str]:
    """Exit code and last line of what it said."""
    process = subprocess.run(
        [*MACROSERVE, "run", *arguments], capture_output=True, text=True, timeout=200
    )
    return process.returncode, process.stderr.splitlines()[-1]


def test_an_engine_that_cannot_start_says_why(folder: Path) -> None:
    write(folder, engine={"type": "Emulated", "kvCacheMemory": "1MiB"})
    code, line = ended(*arguments(folder, "instance", "--port", str(free_port())))
    assert code == 1
    assert line.startswith("error: instance-0 has ended: the KV cache holds ")
    assert line.endswith("enlarge engine.kvCacheMemory")


@pytest.mark.integration
def test_an_engine_whose_process_cannot_load_the_model_says_why(folder: Path) -> None:
    model = shutil.copytree(ensure_tiny_model(), folder / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000_000])
    write(
        folder,
        model={"source": str(model), "maxModelLen": 1024},
        engine={"type": "vLLM", "dtype": "float32"},
    )
    code, line = ended(*arguments(folder, "instance", "--port", str(free_port())))
    assert code == 1
    assert line.startswith("error: instance-0 has ended: safetensors")
    assert "file not fully covered" in line


def test_a_port_that_is_taken(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, line = ended(*arguments(folder, "instance", "--port", port))
    assert code == 1
    assert "ddress already in use" in line


def test_an_emulated_instance_imports_no_engine_and_no_ray(folder: Path) -> None:
    """It has to be there soon, and small."""
    program = (
        "import sys; from macroserve.serving.instance.token_server import build_engine; "
        "import macroserve.cli.run, macroserve.engine.emulated; "
        "import macroserve.serving.instance.server; "
        "print(sorted({'ray', 'vllm', 'torch'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert output.stdout == "[]\n", output.stderr
