"""API keys: reading fails closed, and changes take effect in time."""

import asyncio
import os
from pathlib import Path

import pytest
from support.log_lines import log_lines

from macroserve.api.auth import bearer
from macroserve.serving.ingress.api_keys import (
    MAX_FILE_BYTES,
    ApiKeysError,
    ApiKeySource,
    KnownKey,
    LiveApiKeys,
    environment_source,
    parse_keys,
    read_keys,
)


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (b"sk-one\nsk-two\n", ("sk-one", "sk-two")),
        (b"sk-one", ("sk-one",)),
        (b"\r\n  sk-one \r\n\t\r\nsk-two\r\n", ("sk-one", "sk-two")),
        (b"\xef\xbb\xbfsk-one\n", ("sk-one",)),
        (b"# of the team\nsk-one # laptop of a colleague\n#sk-old\n", ("sk-one",)),
        (b"sk-one\t#x", ("sk-one",)),
        (b"sk#one", ("sk#one",)),
        (b"", ()),
        (b" \n# nothing\n", ()),
        (b"\xef\xbb\xbf", ()),
    ],
)
def test_file_has_one_key_a_line(content: bytes, keys: tuple[str, ...]) -> None:
    assert parse_keys(content, "file") == keys


@pytest.mark.parametrize(
    "line",
    [
        b"sk-secret of a colleague",
        b"sk-secret sk-other",
        "sk-secr\u00e9t".encode(),
        b"sk-sec\x00ret",
        "\ufeffsk-secret".encode(),
        "sk-secret\u00a0remark".encode(),
    ],
)
def test_line_that_is_no_key_is_refused_by_its_number_and_never_shown(line: bytes) -> None:
    with pytest.raises(ApiKeysError, match=r"line 3 of keys\.txt") as refused:
        parse_keys(b"sk-one\n\n" + line + b"\nsk-two\n", "keys.txt")
    assert "sk-" not in str(refused.value) and "colleague" not in str(refused.value)


def test_text_in_another_encoding_is_refused() -> None:
    for content in ("sk-one\n".encode("utf-16"), b"sk-\xff"):
        with pytest.raises(ApiKeysError, match=r"not UTF-8 text|line 1"):
            parse_keys(content, "file")


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"# all revoked\n", b"\xef\xbb\xbf"])
def test_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").write_bytes(content)
    for path in (tmp_path / "keys", tmp_path):
        with pytest.raises(ApiKeysError, match="no API key"):
            read_keys(path)


def test_manifest_that_cannot_be_read_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ApiKeysError, match="No such file"):
        read_keys(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ApiKeysError, match="not a regular file"):
        read_keys(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"a" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ApiKeysError, match="larger"):
        read_keys(tmp_path / "large")
    with pytest.raises(ApiKeysError, match="no API key"):
        ApiKeySource().read()


@pytest.mark.parametrize("value", ["", " ", ",", " , ,"])
def test_environment_without_a_key_is_refused(value: str) -> None:
    with pytest.raises(ApiKeysError, match="MACROSERVE_API_KEYS"):
        environment_source(value)


def test_environment_lists_keys_with_commas_between() -> None:
    assert environment_source("one, two,").read() == ("one", "two")
    with pytest.raises(ApiKeysError) as refused:
        environment_source("one,sk-secret of")
    assert "sk-secret" not in str(refused.value)


def test_keys_are_not_in_the_source_that_is_printed() -> None:
    assert "sk-one" not in repr(environment_source("sk-one"))


def mount(folder: Path, version: str, **files: str) -> None:
    """Mount as the kubelet mounts a Secret: links to files in a folder that is replaced as a
    whole."""
    data = folder / version
    data.mkdir()
    for name, content in files.items():
        (data / name).write_text(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(version)
    (folder / "..new").rename(folder / "..data")


def test_keys_are_those_of_all_files_of_a_mounted_secret(tmp_path: Path) -> None:
    mount(tmp_path, "..1", team_a="a1\na2\n", team_b="b1")
    assert [*read_keys(tmp_path).values()] == [("a1", "a2"), ("b1",)]


def allowed(ring: LiveApiKeys, *keys: str) -> list[bool]:
    return [ring.find(bearer(key)) is not None for key in keys]


def test_changed_secret_is_taken_over(tmp_path: Path) -> None:
    mount(tmp_path, "..1", keys="old\n")
    ring = LiveApiKeys(ApiKeySource(tmp_path))
    assert allowed(ring, "old", "new") == [True, False]
    mount(tmp_path, "..2", keys="new\n")
    asyncio.run(ring.reload())
    assert allowed(ring, "old", "new") == [False, True]


def test_keys_follow_the_file_without_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macroserve.serving.ingress.api_keys.RELOAD_S", 0)
    path = tmp_path / "keys"
    path.write_text("old")

    async def run() -> None:
        ring = LiveApiKeys(ApiKeySource(path))
        task = asyncio.create_task(ring.follow())
        path.write_text("new")
        async with asyncio.timeout(10):
            while not ring.find(bearer("new")):  # noqa: ASYNC110 - only the ring tells
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(run())


def test_reload_without_a_key_keeps_the_former_ones_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("one")
    ring = LiveApiKeys(ApiKeySource(path))

    async def run() -> None:
        path.write_text("# none\n")
        for _ in range(3):
            await ring.reload()
        assert allowed(ring, "one", "") == [True, False]
        path.unlink()
        await ring.reload()
        assert allowed(ring, "one", "") == [True, False]
        path.write_text("two")
        await ring.reload()
        assert allowed(ring, "one", "two") == [False, True]

    asyncio.run(run())
    problems = [line["reason"] for line in log_lines(caplog) if line["level"] == "error"]
    assert len(problems) == 2 and "no API key" in problems[0] and "No such file" in problems[1]


def test_ring_without_a_key_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    with pytest.raises(ApiKeysError):
        LiveApiKeys(ApiKeySource(tmp_path / "keys"))


def test_x_api_key_counts_only_where_anthropic_clients_call() -> None:
    ring = LiveApiKeys(environment_source("one"))
    assert ring.find({"x-api-key": "one"}, takes_x_api_key=True)
    assert not ring.find({"x-api-key": "one"})
    assert not ring.find({"x-api-key": "other"}, takes_x_api_key=True)
    assert not ring.find({}, takes_x_api_key=True)


def test_keys_of_a_file_named_as_a_class_are_of_that_class(tmp_path: Path) -> None:
    for name, keys in (("batch", "b1\nb2"), ("others", "o1"), ("gold", "g1")):
        (tmp_path / name).write_text(keys)
    ring = LiveApiKeys(ApiKeySource(tmp_path), ["batch", "interactive"])
    classes = {key: ring.find(bearer(key)) for key in ("b1", "b2", "o1", "g1", "x")}
    batch, none = KnownKey("batch"), KnownKey(None)
    assert classes == {"b1": batch, "b2": batch, "o1": none, "g1": none, "x": None}
    assert ring.find({"x-api-key": "b1"}, takes_x_api_key=True) == batch


def test_key_of_a_single_file_has_no_class(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text("one")
    ring = LiveApiKeys(ApiKeySource(tmp_path / "batch"), ["batch"])
    assert ring.find(bearer("one")) == KnownKey(None)


async def test_key_in_files_of_two_classes_is_refused_and_later_ignored(tmp_path: Path) -> None:
    (tmp_path / "batch").write_text("one")
    ring = LiveApiKeys(ApiKeySource(tmp_path), ["batch", "interactive"])
    (tmp_path / "interactive").write_text("two\none")
    with pytest.raises(ApiKeysError, match="in a file of another SLO class") as refused:
        LiveApiKeys(ApiKeySource(tmp_path), ["batch", "interactive"])
    assert "one" not in str(refused.value)
    await ring.reload()
    assert ring.find(bearer("one")) == KnownKey("batch")
    assert ring.find(bearer("two")) is None
    (tmp_path / "interactive").write_text("two")
    await ring.reload()
    assert ring.find(bearer("two")) == KnownKey("interactive")
