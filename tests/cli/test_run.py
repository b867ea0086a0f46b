"""``macroserve run``: refused options, and failures, with their messages."""

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
def test_run_with_a_wrong_manifest_exits_with_the_reason(folder: Path, kind: str) -> None:
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
def test_run_without_a_token_names_it(folder: Path, kind: str, token: str) -> None:
    (folder / token).unlink()
    text = refused(*arguments(folder, kind))
    assert text.startswith("error: the ") and text.count("\n") == 1
    assert token in text


def test_run_without_the_api_keys_file_names_them(folder: Path) -> None:
    write(folder, ingress={"apiKeysSecret": "keys"})
    assert "API keys" in refused(*arguments(folder, "ingress", "--api-keys", str(folder / "keys")))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("instance", ("--pool", "middle")),
        ("instance", ("--port", "0")),
        ("head", ("--port", "70000")),
        ("head", ("--cell-ports", "9-1")),
        ("ingress", ("--grace", "-1")),
    ],
)
def test_run_with_wrong_options_names_the_option(
    folder: Path, kind: str, more: tuple[str, ...]
) -> None:
    assert more[0] in refused(*arguments(folder, kind, *more))


def test_run_of_an_instance_without_a_name_is_refused(folder: Path) -> None:
    given = [a for a in arguments(folder, "instance") if a not in KINDS["instance"]]
    assert "--name" in refused(*given)


def ended(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the last line of output."""
    process = subprocess.run(
        [*MACROSERVE, "run", *arguments], capture_output=True, text=True, timeout=200
    )
    return process.returncode, process.stderr.splitlines()[-1]


def test_engine_that_cannot_start_exits_with_the_reason(folder: Path) -> None:
    write(folder, engine={"type": "Emulated", "kvCacheMemory": "1MiB"})
    code, line = ended(*arguments(folder, "instance", "--port", str(free_port())))
    assert code == 1
    assert line.startswith("error: instance-0 has ended: the KV cache holds ")
    assert line.endswith("enlarge engine.kvCacheMemory")


@pytest.mark.integration
def test_engine_that_cannot_load_its_model_exits_with_the_reason(folder: Path) -> None:
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
    assert line.startswith("error: instance-0 has ended: SafetensorError: ")
    assert "file not fully covered" in line


def test_server_on_a_taken_port_exits_with_the_reason(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, line = ended(*arguments(folder, "instance", "--port", port))
    assert code == 1
    assert "ddress already in use" in line


def test_emulated_instance_imports_no_engine_and_no_ray(folder: Path) -> None:
    """An emulated instance must start fast and need little memory."""
    program = (
        "import sys; from macroserve.serving.instance.token_server import build_engine; "
        "import macroserve.cli.run, macroserve.engine.emulated; "
        "import macroserve.serving.instance.server; "
        "print(sorted({'ray', 'vllm', 'torch'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert output.stdout == "[]\n", output.stderr
