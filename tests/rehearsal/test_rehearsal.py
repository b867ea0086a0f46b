"""The rehearsal of a process is read from its environment."""

import msgspec
import pytest

from macroserve.core.accelerators import PEAKS
from macroserve.engine import rehearsal as engine_rehearsal
from macroserve.engine.rehearsal import VARIABLE, Rehearsal, rehearsal, rehearse
from macroserve.rehearsal import platform
from macroserve.sim.hardware.devices import DEVICES


def test_rehearsal_in_the_environment_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Rehearsal(device="H200-141GB", link="pcie4", scale=4.0, seed=7)
    for name, value in wanted.environment().items():
        monkeypatch.setenv(name, value)
    assert rehearsal() == wanted
    assert platform() == "macroserve.rehearsal.platform.RehearsalPlatform"


def test_process_without_a_rehearsal_keeps_its_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert platform() is None


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "nonsense", '{"device": 3}', '{"device": "H300"}'),
        *(
            f'{{"device": "L20-48GB", {field}}}'
            for field in ('"scale": 0', '"noise": -1', '"draft_acceptance": 1.1')
        ),
    ],
)
def test_rehearsal_that_cannot_be_read_is_an_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(msgspec.DecodeError):
        rehearsal()


def test_device_of_the_manifest_yields_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("VLLM_PLUGINS", "")
    rehearse(None)
    assert rehearsal() is None
    rehearse("L20-48GB")
    rehearse("H200-141GB")
    assert rehearsal() == Rehearsal(device="L20-48GB")


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ("", "macroserve-rehearsal"),
        ("mine,yours", "mine,yours,macroserve-rehearsal"),
        ("macroserve-rehearsal,mine", "macroserve-rehearsal,mine"),
    ],
)
def test_other_plugins_are_loaded_beside_the_rehearsal(
    plugins: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", plugins)
    assert Rehearsal(device="L20-48GB").environment()["VLLM_PLUGINS"] == expected


def test_devices_that_a_manifest_may_name_are_those_of_the_simulator() -> None:
    assert PEAKS.keys() == DEVICES.keys()


def test_installation_without_the_entry_point_does_not_run_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_rehearsal, "entry_points", lambda **_: ())
    with pytest.raises(RuntimeError, match="install it again"):
        rehearse("L20-48GB")
    rehearse(None)
