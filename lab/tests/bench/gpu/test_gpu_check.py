"""The check on a GPU runs its parts, keeps measurements, and reports failures."""

import json
import sys
from pathlib import Path

import pytest

from macroserve_lab.bench.gpu import check
from macroserve_lab.bench.gpu.check import (
    ENGINES,
    Check,
    compared,
    counted,
    failures,
    roofline,
    stock_figures,
)

ROOT = Path(__file__).parents[4]
sys.path.append(str(ROOT / "docs" / "scripts"))
from results import environment  # noqa: E402

JUNIT = '<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>'
KERNELS = (
    "write_hidden 16384",
    "rebuild_kv 16384",
    "attend_hidden absorbed 32 x 4096",
    "attend_hidden rotary 32 x 4096",
)
ROOFLINE = {
    "rates": {"bytes_per_s": 3e12, "flops_per_s": 8e14},
    "kernels": [{"name": name, "time_s": 2e-3, "share": 0.5} for name in KERNELS],
}


def engine(steps_per_s: float, *tokens: int) -> dict:
    some = [[each] for each in tokens]
    engine = {"runner": "V2", "dtype": "float32"}
    return engine | {"steps_per_s": steps_per_s, "tokens": some, "hidden_share": 0.25}


def test_counted_tests_are_passed_failed_or_skipped() -> None:
    assert counted(JUNIT) == {"tests.passed": 5, "tests.failed": 2, "tests.skipped": 2}


def test_engine_is_compared_with_stock() -> None:
    figures = compared("unified", engine(110, 1, 2, 3, 0), engine(100, 1, 2, 3, 4))
    assert figures == {
        "engine.unified.steps_per_s": 110,
        "engine.unified.steps_ratio": pytest.approx(1.1),
        "engine.unified.tokens_equal": 0.75,
        "engine.unified.hidden_share": 0.25,
    }


def test_page_has_each_figure_of_a_check_that_passed(tmp_path: Path) -> None:
    origin = {"date": "1970-01-01", "machine": "no GPU", "commit": "0", "took_s": 1.0}
    origin |= {"torch": "0", "triton": "0", "vllm": "0", "engine.mode": "graphs"}
    same = engine(100, 1)
    document = origin | counted(JUNIT) | roofline(ROOFLINE)
    document |= stock_figures(same)
    for name in ENGINES:
        document |= compared(name, same, same)
    (tmp_path / "gpu-check.json").write_text(json.dumps(document))
    page = environment(tmp_path).get_template("gpu.md").render()
    assert "1970-01-01, no GPU, commit 0" in page


STUBS = {
    "site/pytest.py": f"""
        import sys
        [report] = [a.split("=")[1] for a in sys.argv if a.startswith("--junitxml")]
        open(report, "w").write({JUNIT!r})
        sys.exit(TESTS)
    """,
    "src/macroserve/kernels/bench.py": f"""
        import json, sys
        json.dump({ROOFLINE!r}, open(sys.argv[2], "w"))
    """,
    "src/macroserve_lab/bench/gpu/engines.py": f"""
        import sys, time
        folder, name, *mode = sys.argv[1:]
        time.sleep(SLEEP if name == "unified" else 0)
        if FAILS in mode and name != "build":
            sys.exit("no " + mode[0])
        if name != "build":
            print("vLLM's own words")
            print({json.dumps(engine(100, 1))!r})
    """,
}


@pytest.fixture
def run(tmp_path: Path):
    """Run a check whose parts are these modules, with given changes."""

    def run(
        tests: int = 0, fails: str = "", sleep_s: float = 0, keep=lambda figures: None
    ) -> Check:
        for name, text in STUBS.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [line.removeprefix(8 * " ") for line in text.splitlines()]
            given = f"TESTS, FAILS, SLEEP = {tests}, {fails!r}, {sleep_s}\n"
            path.write_text(given + "\n".join(lines))
        laboratory = tmp_path / "src" / "macroserve_lab"
        for package in (laboratory, laboratory / "bench", laboratory / "bench" / "gpu"):
            (package / "__init__.py").touch()
        (tmp_path / "src" / "macroserve" / "kernels" / "__init__.py").touch()
        found = Check(tmp_path, tmp_path, keep)
        found.run()
        return found

    return run


def test_check_whose_parts_pass_has_all_figures(run) -> None:
    found = run()
    assert found.errors == {} and failures(found) == []
    assert found.figures["engine.mode"] == "graphs"
    assert found.figures["engine.unified.tokens_equal"] == 1
    assert found.figures["rebuild_kv.16384.share"] == 0.5
    assert found.figures["tests.passed"] == 5


def test_check_with_failed_tests_still_measures_engines(run) -> None:
    found = run(tests=1)
    assert list(found.errors) == ["kernels' tests"]
    assert found.figures["tests.failed"] == 2
    assert found.figures["engine.vllm.steps_per_s"] == 100
    assert failures(found)


def test_check_without_graphs_compares_eager_engines(run) -> None:
    found = run(fails="graphs")
    assert found.figures["engine.mode"] == "eager"
    assert "no graphs" in found.errors["graphs"]
    assert "engine.vllm.tokens_equal" in found.figures


def test_check_with_an_engine_that_hangs_ends_in_time(run, monkeypatch) -> None:
    monkeypatch.setattr(check, "ENGINE_LIMIT_S", 3.0)
    found = run(sleep_s=60)
    assert found.errors == {"engine unified": "engine unified graphs took longer than 3 s"}
    assert found.figures["tests.passed"] == 5
    assert "engine.hybrid.tokens_equal" in found.figures


def test_check_without_time_says_so(run, monkeypatch) -> None:
    monkeypatch.setattr(check, "LIMIT_S", 0.0)
    assert run().errors["kernels' roofline"] == "no time was left for kernels' roofline"


def test_figures_are_kept_as_soon_as_they_are_measured(run, tmp_path: Path) -> None:
    kept: list[dict] = []
    run(fails="graphs", keep=kept.append)
    assert [("tests.passed" in each, "engine.requests" in each) for each in kept[:1]] == [
        (True, False)
    ]
    assert "engine.hybrid.tokens_equal" in kept[-1]
    assert "no graphs" in kept[-1]["errors"]["graphs"]


@pytest.mark.parametrize(
    ("name", "share", "failed"),
    [
        ("vllm", 1.0, []),
        ("vllm", 0.99, ["engine vllm gives 1% of requests other tokens than stock"]),
        ("unified", 0.9, []),
        ("unified", 0.27, ["engine unified gives 73% of requests other tokens than stock"]),
        ("hybrid", 0.0, ["engine hybrid gives 100% of requests other tokens than stock"]),
    ],
)
def test_other_tokens_than_stock_fail_the_check(
    tmp_path: Path, name: str, share: float, failed: list[str]
) -> None:
    found = Check(tmp_path, tmp_path)
    found.figures[f"engine.{name}.tokens_equal"] = share
    assert failures(found) == failed
