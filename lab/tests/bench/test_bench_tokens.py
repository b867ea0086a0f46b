"""``macroserve bench tokens`` continues after the rounds in its journal."""

from pathlib import Path

import msgspec
import pytest

from macroserve.engine.vllm.environment import prepare_environment

prepare_environment()

from macroserve_lab.bench import token_cpu  # noqa: E402
from macroserve_lab.bench.figures import machine  # noqa: E402
from macroserve_lab.bench.quickstart import quickstart_settings  # noqa: E402
from macroserve_lab.bench.token_cpu import Round, Side, TokenCpuOptions, measure  # noqa: E402


def round_of(ours_us: float, commit: str = "c", num_streams: int = 4) -> Round:
    ours, stock = Side(ours_us, 800.0, 1000.0), Side(100.0, 800.0, 1100.0)
    return Round(machine(), commit, num_streams, ours, stock)


async def test_finished_rounds_of_the_journal_give_the_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "rounds.jsonl"
    rounds = [
        round_of(150.0),
        round_of(130.0),
        round_of(140.0),
        round_of(900.0, commit="another"),
        round_of(900.0, num_streams=64),
    ]
    journal.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rounds))
    monkeypatch.setattr(token_cpu, "running", None)  # a start would fail
    monkeypatch.setattr(token_cpu, "bare_vllm", None)
    figures = await measure(quickstart_settings(), TokenCpuOptions(3, 4, journal), "c")
    assert figures["engine.token_cpu_ratio"] == pytest.approx(1.4)
    assert figures["engine.token_cpu_us"] == 140.0
    assert figures["engine.stock_token_cpu_us"] == 100.0
