"""The tests of the clusters run on a new machine, after a change, and every 30 days."""

import subprocess
import sys
from pathlib import Path

import pytest
from if_changed import content_of, main, reason_to_skip

DAY_S = 24 * 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitignore").write_text("ignored\n")
    (folder / "file.py").write_text("one")
    return folder


def command(tmp_path: Path, status: int = 0) -> list[str]:
    """Return a command that leaves a file and ends with this status."""
    code = (
        f"import pathlib, sys; pathlib.Path({str(tmp_path / 'ran')!r}).touch(); sys.exit({status})"
    )
    return [sys.executable, "-c", code]


def has_run(tmp_path: Path) -> bool:
    ran = (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink(missing_ok=True)
    return ran


def test_tests_that_passed_are_skipped_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "cache" / "passed.json"
    assert main(command(tmp_path), record, "this content") == 0
    assert has_run(tmp_path)
    assert main(command(tmp_path), record, "this content") == 0
    assert not has_run(tmp_path)
    assert "skipped: they passed on 20" in capsys.readouterr().out


def test_tests_after_a_change_run_again(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    main(command(tmp_path), record, "this content")
    assert has_run(tmp_path)
    main(command(tmp_path), record, "other content")
    assert has_run(tmp_path)


def test_tests_of_another_tier_run(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    main(command(tmp_path), record, "this content")
    assert has_run(tmp_path)
    main([*command(tmp_path), "-m", "not e2e"], record, "this content")
    assert has_run(tmp_path)


def test_tests_that_failed_run_again_and_report_it(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    for _ in range(2):
        assert main(command(tmp_path, status=3), record, "this content") == 3
        assert has_run(tmp_path)


def test_tests_that_passed_count_for_30_days(tmp_path: Path) -> None:
    record = tmp_path / "passed.json"
    record.write_text('{"tested": "this", "at_s": 0}')
    assert reason_to_skip(record, "this", 29 * DAY_S)
    assert not reason_to_skip(record, "this", 31 * DAY_S)


def test_content_changes_with_every_file_that_is_not_ignored(folder: Path, tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("package==1")
    before = content_of(folder, lock)
    (folder / "ignored").write_text("a cache")
    assert content_of(folder, lock) == before
    seen = {before}
    (folder / "file.py").write_text("two")
    seen.add(content_of(folder, lock))
    (folder / "new.py").write_text("")
    seen.add(content_of(folder, lock))
    lock.write_text("package==2")
    seen.add(content_of(folder, lock))
    assert len(seen) == 4
