"""Figures and their origin."""

import json

from macroserve_lab.bench.figures import report


def test_report_of_figures_writes_what_it_prints(tmp_path, capsys):
    report({"a.b_ms": 1.23456}, tmp_path / "build" / "figures.json")
    written = (tmp_path / "build" / "figures.json").read_text()
    assert written == capsys.readouterr().out
    assert json.loads(written)["a.b_ms"] == 1.2346


def test_report_of_figures_names_date_machine_and_commit(tmp_path):
    report({}, tmp_path / "figures.json")
    told = json.loads((tmp_path / "figures.json").read_text())
    assert list(told) == ["date", "machine", "commit"]
    assert all(told.values())


def test_report_outside_a_checkout_names_the_version(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report({}, tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text())["commit"].startswith("version ")


def test_report_of_figures_from_an_earlier_commit_names_that_commit(tmp_path):
    report({}, tmp_path / "figures.json", at="abc1234")
    assert json.loads((tmp_path / "figures.json").read_text())["commit"] == "abc1234"
