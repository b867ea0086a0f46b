"""The journal, by which a stopped measurement continues."""

from pathlib import Path

import msgspec
import pytest
from lab_support.peers_points import SETTINGS, idle, point

from macroserve_lab.bench.peers.journal import Journal, JournalError, PointKey


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "peers.jsonl"


def test_journal_opened_again_has_what_was_added(path: Path) -> None:
    journal = Journal.open(path, SETTINGS)
    journal.add(point(rate=5.5))
    journal.add(idle("macroserve", 0, 9.0))
    again = Journal.open(path, SETTINGS)
    assert again.points == [point(rate=5.5)]
    assert again.idles == [idle("macroserve", 0, 9.0)]
    assert again.points[0].key == PointKey(0, "macroserve", "chats", 5.5)


def test_journal_with_a_line_cut_off_loses_that_line_alone(path: Path) -> None:
    journal = Journal.open(path, SETTINGS)
    journal.add(point(rate=5.5))
    journal.add(point(rate=7.0))
    path.write_bytes(path.read_bytes()[:-10])
    again = Journal.open(path, SETTINGS)
    assert again.points == [point(rate=5.5)]
    again.add(point(rate=8.5))
    assert [each.rate for each in Journal.open(path, SETTINGS).points] == [5.5, 8.5]


def test_journal_of_other_settings_is_refused_with_what_differs(path: Path) -> None:
    Journal.open(path, SETTINGS).add(point())
    before = path.read_bytes()
    other = msgspec.structs.replace(SETTINGS, seed=1, commit="def5678")
    with pytest.raises(JournalError, match=r"commit 'abc1234' \(now 'def5678'\), seed 0 \(now 1\)"):
        Journal.open(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ['{"a": 1}\n', "no JSON\n"])
def test_file_that_is_no_journal_is_refused_and_kept(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(JournalError, match="is not a journal of this benchmark"):
        Journal.open(path, SETTINGS)
    assert path.read_text() == content


def test_journal_that_begins_with_a_point_is_refused(path: Path) -> None:
    path.write_bytes(msgspec.json.encode(point()) + b"\n")
    with pytest.raises(JournalError, match="no settings"):
        Journal.open(path, SETTINGS)


def test_point_that_does_not_count_is_measured_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "points.jsonl", SETTINGS)
    journal.add(point(late_p99=0.03))
    assert journal.keys == set()
    journal.add(point())
    assert journal.keys == {point().key}


@pytest.mark.parametrize(
    ("late_p99", "idle", "counts"),
    [(None, 0.0, True), (0.02, 0.3, True), (0.021, 0.9, False), (0.0, 0.29, False)],
)
def test_rehearsed_point_counts_on_a_machine_that_keeps_pace(
    late_p99: float | None, idle: float, counts: bool
) -> None:
    assert point(late_p99=late_p99, idle=idle).counts == counts
