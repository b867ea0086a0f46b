"""The command line refuses bad input with a sentence and an exit code, and starts no process."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from macroserve.cli.app import app, main
from macroserve.local import state
from macroserve.local.user_folders import cache_folder, state_folder

GOOD = Path("manifests/emulated.yaml").read_text()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("content", ["", " \n", "# none\n", "one key too many\n", None])
def test_up_without_a_usable_api_key_does_not_start(tmp_path: Path, content: str | None) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_text(content)
    result = invoke("up", "-f", "manifests/emulated.yaml", "--api-keys", str(keys))
    assert result.exit_code == 2
    assert str(keys) in result.output and "many" not in result.output


@pytest.mark.parametrize("value", ["", " , "])
def test_up_with_an_empty_key_variable_does_not_start(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("MACROSERVE_API_KEYS", value)
    result = invoke("up", "-f", "manifests/emulated.yaml")
    assert result.exit_code == 2 and "MACROSERVE_API_KEYS" in result.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: [", "is not YAML"),
        ("- a list", "mapping"),
        (GOOD.replace("instances: 8", "instances: none"), "spec.instances"),
        (GOOD.replace("source: tiny", "source: ./nowhere"), "spec.model.source"),
        (GOOD.replace("upperBound: 6", "upperBound: 2"), "spec.mitosis.upperBound"),
        (GOOD + "\n  surprise: 1\n", "surprise"),
    ],
)
def test_up_refuses_a_wrong_manifest(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    for command in (("up", "-f", str(path), "--port", "18999"), ("apply", "-f", str(path))):
        if command[0] == "apply" and "nowhere" in text:
            continue  # only the one who loads a model looks for it
        result = invoke(*command)
        assert result.exit_code == 2, result.output
        assert says in result.output
        assert "Traceback" not in result.output


def test_up_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = invoke("up", "-f", str(tmp_path / "nothing.yaml"))
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_up_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(GOOD)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        result = invoke("up", "-f", str(path), "--port", str(sock.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot be used" in result.output


def test_up_refuses_a_name_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text(GOOD)
    name = "emulated"
    with state.claimed(name):
        state.write(deployment(name, os.getpid()))
        result = invoke("up", "-f", str(path), "--port", "18999")
        assert result.exit_code == 1
        assert "'emulated' is already running" in result.output
        assert "Model" not in result.output  # nothing was begun
        assert state.find(name) == deployment(name, os.getpid())
    with state.claimed(name):
        pass  # it is free again


def command(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the whole command."""
    monkeypatch.setattr(sys, "argv", ["macroserve", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_up_without_a_folder_to_write_to_ends_with_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    variable: str,
) -> None:
    in_place = tmp_path / "a-file"
    in_place.touch()
    monkeypatch.setenv(variable, str(in_place))
    up = ("up", "-f", "manifests/emulated.yaml", "--port", "18999")
    assert command(*up, monkeypatch=monkeypatch) == 1
    said = capfd.readouterr().err
    assert said.startswith("error:") and said.count("\n") == 1
    assert "a-file" in said and "Not a directory" in said


def test_simulate_with_an_unwritable_json_file_still_prints_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    json_file = tmp_path / "nowhere" / "figures.json"
    simulate = "simulate -f manifests/quickstart.yaml --device A100-80GB --rate 1 --duration 10s"
    model = ("--model", "Mistral-7B", "--prompt-tokens", "100", "--output-tokens", "10")
    arguments = (*simulate.split(), *model, "--json", str(json_file))
    assert command(*arguments, monkeypatch=monkeypatch) == 1
    said = capfd.readouterr()
    assert "TTFT" in said.out
    assert said.err.endswith(f"error: {json_file}: No such file or directory\n")


def test_cache_folder_without_a_home_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(FileNotFoundError, match="set HOME or XDG_CACHE_HOME"):
        cache_folder()


@pytest.mark.parametrize("command", [("status",), ("scale", "3"), ("status", "--name", "x")])
def test_command_without_a_deployment_fails(command: tuple[str, ...]) -> None:
    result = invoke(*command)
    assert result.exit_code == 1
    assert "is running on this machine" in result.output


def test_scale_to_less_than_one_instance_is_refused() -> None:
    assert invoke("scale", "0").exit_code == 2
    assert invoke("scale", "many").exit_code == 2


def deployment(name: str, pid: int) -> state.RunningDeployment:
    return state.RunningDeployment(
        name, pid, "http://e", "http://p", "admin", "http://c", "control"
    )


def test_state_files_are_private_and_found_by_name() -> None:
    for name in ("a", "b"):
        with state.claimed(name):
            state.write(deployment(name, os.getpid()))
    path = next(state_folder().glob("a.json"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert state.find("b") == deployment("b", os.getpid())
    with pytest.raises(state.NotRunningError, match="a, b"):
        state.find(None)
    state.remove("a")
    assert state.find(None).name == "b"


def test_state_of_a_dead_process_does_not_count() -> None:
    with state.claimed("dead"):
        state.write(deployment("dead", 2**22 + 1))
    with pytest.raises(state.NotRunningError):
        state.find(None)


def test_deployment_repr_hides_its_secrets() -> None:
    assert "admin" not in repr(deployment("a", 1)) and "'control'" not in repr(deployment("a", 1))
