"""Keys from files that change while a component runs."""

import logging
from pathlib import Path

import msgspec
import pytest
from support.keys import source
from support.log_lines import log_lines

from macroserve.api.keys import PURPOSES, KeyRing, KeysError, Purpose, Role, derived_key
from macroserve.serving.security.key_source import KeySource, LiveKeys
from macroserve.serving.security.reloaded import RELOAD_S

INGRESS = PURPOSES[Role.INGRESS]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_files_of_purposes_and_a_secret_file_give_the_same_keys(tmp_path: Path) -> None:
    derived, given = tmp_path / "derived", tmp_path / "given"
    for folder in (derived, given):
        folder.mkdir()
    (given / "secret").write_text("new\nold\n")
    for purpose in INGRESS:
        lines = [derived_key(secret, purpose) for secret in ("new", "old")]
        (derived / purpose).write_text("\n".join(lines))
    rings = [KeySource(INGRESS, str(folder)).read() for folder in (derived, given)]
    assert rings[0] == rings[1] == KeyRing.derived(["new", "old"], INGRESS)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "neither secret nor cells, routing, generation"),
        ({"cells": "a", "routing": "b"}, "neither secret nor generation"),
        ({"secret": ""}, "secret cannot be used: it is empty"),
        ({"secret": "\n".join("abcde")}, "secret cannot be used: it has 5 lines"),
        ({"cells": "a", "routing": " ", "generation": "c"}, "routing cannot be used: it is empty"),
    ],
)
def test_folder_without_the_keys_of_a_role_is_refused_with_the_file(
    tmp_path: Path, files: dict[str, str], says: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(KeysError, match=says):
        KeySource(INGRESS, str(tmp_path)).read()


def test_changed_file_holds_soon(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "secret"
    file.write_text("old")
    keys = LiveKeys(KeySource(INGRESS, str(tmp_path)), clock)
    file.write_text("new\nold")
    clock.now = RELOAD_S / 2
    assert keys.ring == KeyRing.derived(["old"], INGRESS)
    clock.now = RELOAD_S
    assert keys.ring == KeyRing.derived(["new", "old"], INGRESS)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_key_file_that_is_unusable_keeps_the_former_keys_and_logs_once(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "secret"
    file.write_text("s3cret")
    keys = LiveKeys(KeySource(INGRESS, str(tmp_path)), clock)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.now += RELOAD_S
            assert keys.ring == KeyRing.derived(["s3cret"], INGRESS)
    [line] = log_lines(caplog)
    assert line["event"] == "credentials not reloaded" and "s3cret" not in str(line)
    file.write_text("new")
    clock.now += RELOAD_S
    assert keys.ring == KeyRing.derived(["new"], INGRESS)


def test_source_shows_no_secret_and_travels_as_json() -> None:
    given = source("s3cret", Purpose.CONTROL)
    assert "s3cret" not in repr(given)
    assert msgspec.json.decode(msgspec.json.encode(given), type=KeySource) == given
