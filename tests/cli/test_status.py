"""The tables of ``macroserve status``."""

from msgspec.structs import replace
from rich.console import Console

from macroserve.api.messages import CellReport, InstanceReport, Report
from macroserve.cli.status import table
from macroserve.core.status import UNHEARD, CellView, Ended, InstanceStatus, Phase, Pool

STATUS = InstanceStatus(
    seq=1,
    phase=Phase.PREFILL,
    num_waiting=100,
    num_running=64,
    saved_tpot_p10_s=-12.344,
    free_blocks=0,
    num_blocks=500,
    oldest_wait_s=123.456,
    finished=1000,
    attained=1000,
    prompt_tokens=2000,
    cached_tokens=1900,
    step_s=0.1204,
    predicted_step_s=0.1179,
)
CELL = CellView(
    name="cell-12",
    instances=("instance-10", "instance-11"),
    high_priority=("instance-11",),
    num_waiting=203,
    num_running=128,
    num_blocks=1000,
    finished=2000,
    attained=1980,
)
REPORT = Report(
    (
        CellReport(
            CELL,
            (
                InstanceReport("instance-10", Pool.LP, "", STATUS, 0.1, in_flight=3),
                InstanceReport("instance-11", Pool.HP, "", STATUS, 0.1, in_flight=0, draining=True),
            ),
            recent_finished=100,
            recent_attained=90,
        ),
    )
)


def test_status_tells_the_attainment_of_each_class(capsys):
    (cell,) = REPORT.cells
    by_class = {"batch": Ended(40, 40), "chat": Ended(0, 0)}
    told = replace(cell, recent_by_class=by_class)
    for report, expected in ((REPORT, False), (Report((told,)), True)):
        Console(width=80).print(table("llama", report))
        line = "SLO met by class, last 60 s: default 83%, batch 100%, chat -"
        assert (line in capsys.readouterr().out) is expected


def test_status_tells_each_decision_on_caches_once(capsys):
    told = {"hybrid_cache": "off: why", "prefix_caching": "on: because"}
    (cell,) = REPORT.cells
    instances = tuple(replace(each, **told) for each in cell.instances)
    Console(width=80).print(table("llama", Report((replace(cell, instances=instances),))))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines[1:3]] == [
        "hybrid cache off: why",
        "prefix caching on: because",
    ]


def test_status_tells_what_was_refused(capsys):
    (cell,) = REPORT.cells
    told = replace(cell, recent_refused={"no_instance": 2, "ttft": 40})
    for report, expected in ((REPORT, False), (Report((told,)), True)):
        Console(width=80).print(table("llama", report))
        line = "Refused, last 60 s: ttft 40, no_instance 2"
        assert (line in capsys.readouterr().out) is expected


def test_status_of_instances_before_their_first_step_has_dashes(capsys):
    (cell,) = REPORT.cells
    unheard = replace(cell.instances[0], status=UNHEARD, in_flight=0)
    quick = replace(STATUS, step_s=0.0084, predicted_step_s=0.0079)
    instances = (unheard, replace(cell.instances[1], status=quick))
    Console(width=80).print(table("llama", Report((replace(cell, instances=instances),))))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    unknown = ["-", "0", "0", "0.00", "-", "-", "-", "-", "-"]
    assert ["instance-10", "cell-12", "LP", *unknown] in lines
    assert lines[-1][-1] == "8.4/7.9"


def test_status_on_80_columns_shows_every_name(capsys):
    Console(width=80).print(table("llama", REPORT))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:6] == ["llama:", "2", "instances", "in", "1", "cells,"]
    usual = ["-12.44", "100%", "95%", "100%", "120/118"]
    for row in (
        ["cell-12", "2", "1", "2", "0", "128", "203", "100%", "99%", "90%"],
        ["instance-10", "cell-12", "LP", "prefill", "64", "103", "123.56", *usual],
        ["instance-11", "cell-12", "HP", "draining", "64", "100", "123.56", *usual],
    ):
        assert row in lines
    words = {word for line in lines for word in line}
    assert {
        "Instances",
        "Decode",
        "Running",
        "Waiting",
        "met",
        "hits",
        "Oldest",
        "Slack",
        "Step,",
    } <= words
