"""A model is fetched once, with retries, and permanent errors are reported at once."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from support.manifests import edited, emulated

from macroserve.api.manifest import parse
from macroserve.local import model_fetch
from macroserve.local.model_fetch import NUM_TRIES, OTHER_FORMATS, ModelFetchError, fetch_model

HUB = edited(("spec.model.source", "meta/Llama"))


class FakeHub:
    """A hub whose downloads fail with these errors one after another, then succeed."""

    def __init__(self, folder: Path, *errors: Exception, files: tuple[str, ...]) -> None:
        self.folder, self.files = folder, files
        self.errors: Sequence[Exception] = errors
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.slept: list[float] = []

    def download(self, name: str, **options: Any) -> str:
        self.asked.append((name, options))
        if self.errors:
            first, *self.errors = self.errors
            raise first
        for file in self.files:
            (self.folder / file).touch()
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path, files=("config.json", "model.safetensors"))
    monkeypatch.setattr(model_fetch, "snapshot_download", fake.download)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


def test_model_with_safetensors_is_fetched_without_other_formats(hub: FakeHub) -> None:
    fetch_model(parse(HUB))
    assert hub.asked == [("meta/Llama", {"revision": None, "ignore_patterns": [*OTHER_FORMATS]})]


def test_rehearsed_model_is_fetched_without_weights(hub: FakeHub) -> None:
    hub.files = ("config.json",)
    fetch_model(parse(edited(HUB_AT_REVISION[0], ("spec.engine.rehearse", "L20-48GB"))))
    ((_, options),) = hub.asked
    assert "*.safetensors" in options["ignore_patterns"]


def test_model_without_safetensors_is_fetched_with_its_older_weights(hub: FakeHub) -> None:
    hub.files = ("config.json",)
    fetch_model(parse(edited(*HUB_AT_REVISION[:2])))
    (_, first), (name, second) = hub.asked
    assert first["revision"] == second["revision"] == "v1"
    assert (name, second["allow_patterns"]) == ("meta/Llama", ["*.bin", "*.pt"])


HUB_AT_REVISION = (
    ("spec.model.source", "meta/Llama"),
    ("spec.engine.args", {"revision": "v1"}),
    ("spec.model.adapters", [{"name": "a", "source": "team/adapter"}]),
)


def test_adapters_are_fetched_at_their_own_revision(hub: FakeHub) -> None:
    fetch_model(parse(edited(*HUB_AT_REVISION)))
    asked = [(name, options["revision"]) for name, options in hub.asked]
    assert asked == [("meta/Llama", "v1"), ("team/adapter", None)]


@pytest.mark.parametrize("num_failures", range(NUM_TRIES))
def test_hub_that_does_not_answer_is_asked_ever_later(hub: FakeHub, num_failures: int) -> None:
    hub.errors = [LocalEntryNotFoundError("no connection") for _ in range(num_failures)]
    fetch_model(parse(HUB), hub.slept.append)
    assert hub.slept == [2.0, 4.0, 8.0, 16.0][:num_failures]
    assert len(hub.asked) == num_failures + 1


def test_hub_that_never_answers_is_given_up(hub: FakeHub) -> None:
    hub.errors = [LocalEntryNotFoundError("no connection\nmore") for _ in range(99)]
    with pytest.raises(ModelFetchError, match=r"^meta/Llama cannot be fetched: no connection$"):
        fetch_model(parse(HUB), hub.slept.append)
    assert len(hub.asked) == NUM_TRIES
    assert len(hub.slept) == NUM_TRIES - 1


NOT_FOUND = httpx2.Response(404, request=httpx2.Request("GET", "https://hub/api/models/meta/Llama"))
FINAL = {
    "no such model": RepositoryNotFoundError("not found", response=NOT_FOUND),
    "no space": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "read-only": OSError(errno.EROFS, os.strerror(errno.EROFS)),
}


@pytest.mark.parametrize("case", FINAL)
def test_failure_that_lasts_is_told_at_once(hub: FakeHub, case: str) -> None:
    hub.errors = [FINAL[case]]
    with pytest.raises(ModelFetchError, match=r"^meta/Llama cannot be fetched: "):
        fetch_model(parse(HUB), hub.slept.append)
    assert len(hub.asked) == 1


@pytest.mark.parametrize("source", ["tiny", "meta/Llama"])
def test_cache_that_cannot_be_written_is_named(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(model_fetch.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ModelFetchError, match=r"cannot be written to: Read-only file system$"):
        fetch_model(parse(edited(("spec.model.source", source))))
    assert not hub.asked


def test_built_in_model_is_built(hub: FakeHub, tmp_path: Path) -> None:
    fetch_model(parse(edited()))
    (built,) = (tmp_path / "cache" / "macroserve" / "models").iterdir()
    assert (built / "model.safetensors").is_file()
    assert not hub.asked


def test_emulated_engine_needs_nothing(hub: FakeHub, tmp_path: Path) -> None:
    fetch_model(parse(emulated()))
    assert not hub.asked
    assert list(tmp_path.iterdir()) == []
