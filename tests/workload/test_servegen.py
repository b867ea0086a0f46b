"""ServeGen's clients: their files, and the requests that they send."""

import json
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest

from macroserve.workload import servegen
from macroserve.workload.client_load import WINDOW_S, ClientLoad
from macroserve.workload.servegen import Client, Pattern, RateWindow, read_servegen

TRACE = "0,3.0,1.5,Gamma,0.5,0.6\n600,0,0,,0,0\n1200,1.5,2.0,Weibull,0.7,0.5\n"
LENGTHS = {
    "0": {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{5: 1.0}"},
    "1200": {"input_tokens": "{}", "output_tokens": "{}"},
}


@pytest.fixture
def write(tmp_path: Path):
    def write_client(number: int = 0, trace: str = TRACE, lengths: object = LENGTHS) -> Path:
        (tmp_path / f"chunk-{number}-trace.csv").write_text(trace)
        (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))
        return tmp_path

    return write_client


def test_read_returns_the_windows_with_requests_and_the_lengths(write) -> None:
    [client] = read_servegen(write())
    assert client.windows == {
        0: RateWindow(3.0, Pattern.GAMMA, 0.5),
        1200: RateWindow(1.5, Pattern.WEIBULL, 0.7),
    }
    # Those of the last stretch that has any.
    for start_s in (0, 600, 1200):
        found = client.lengths_at(start_s)
        assert found is not None
        prompts, outputs = found
        assert (prompts.lengths.tolist(), outputs.lengths.tolist()) == ([10, 30], [5])


def test_read_takes_quoted_columns(write) -> None:
    [client] = read_servegen(write(trace='"0","3.0","1.5","Gamma","0.5","0.6"\n'))
    assert client.windows == {0: RateWindow(3.0, Pattern.GAMMA, 0.5)}


@pytest.mark.parametrize(
    ("trace", "fault"),
    [
        ("0,1,1,Gamma\n", "line 1: expected start, rate"),
        ("0,1,1,Gamma,x,1\n", "line 1: expected start, rate"),
        ("0,1,1," + "x" * 200_000 + ",1,1\n", "line 1: expected start, rate"),
        ("0,1,1,Normal,1,1\n", "line 1: expected start, rate"),
        (TRACE + "1800,-1,1,Gamma,1,1\n", "line 4: a number is out of range"),
        ("0,nan,1,Gamma,1,1\n", "line 1: a number is out of range"),
        ("0,1,1,Gamma,0,1\n", "line 1: a number is out of range"),
        ("0,1e9,1,Gamma,1,1\n", "line 1: a number is out of range"),
    ],
)
def test_read_of_a_bad_trace_names_file_line_and_fault(write, trace: str, fault: str) -> None:
    with pytest.raises(ValueError, match=rf"chunk-0-trace\.csv, {fault}"):
        read_servegen(write(trace=trace))


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        {"x": {}},
        {"0": {"input_tokens": "{1: 1.0}"}},
        {"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{1: 1.0}"}},
        {"0": {"input_tokens": "{1: -1.0, 2: 2.0}", "output_tokens": "{1: 1.0}"}},
        {"0": {"input_tokens": "__import__('os')", "output_tokens": "{1: 1.0}"}},
    ],
)
def test_bad_lengths_raise_a_sentence(write, lengths: object) -> None:
    fault = r"chunk-0-dataset\.json(, 0 s:)? .*(not a data set of ServeGen's|probabilities)"
    with pytest.raises(ValueError, match=fault):
        list(islice(ClientLoad(1.0, read_servegen(write(lengths=lengths))).arrivals(0), 1))


def test_read_of_a_folder_that_fills_the_memory_raises(write, monkeypatch) -> None:
    monkeypatch.setattr(servegen, "MAX_FOLDER_BYTES", 600)
    write()
    for number in range(1, 6):
        write(number)
    with pytest.raises(ValueError, match="leave clients out"):
        read_servegen(write())


def test_read_of_a_folder_without_clients_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 0 files like chunk-0-trace"):
        read_servegen(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        read_servegen(tmp_path / "none")


def client(
    rate: float, prompt: int, pattern: Pattern = Pattern.GAMMA, shape: float = 1.0
) -> Client:
    texts = {0: (f"{{{prompt}: 1.0}}", "{5: 1.0}")}
    window = RateWindow(rate, pattern, shape)
    return Client({0: window, WINDOW_S: window}, texts)


@pytest.mark.parametrize("pattern", Pattern)
@pytest.mark.parametrize("shape", [0.01, 0.4, 1.0, 3.0])
def test_clients_send_their_shares_of_the_rate_in_order(pattern: Pattern, shape: float) -> None:
    load = ClientLoad(4.0, (client(0.3, 10, pattern, shape), client(0.1, 20, pattern, shape)))
    found = list(load.arrivals(0))
    times_s = [arrival.at_s for arrival in found]
    assert times_s == sorted(times_s) and times_s[0] >= 0 and times_s[-1] <= 2 * WINDOW_S
    assert len(found) == pytest.approx(4 * 2 * WINDOW_S, abs=4)
    assert np.mean([a.num_prompt_tokens == 10 for a in found]) == pytest.approx(0.75, abs=0.01)


def test_load_of_a_small_shape_comes_in_bursts() -> None:
    gaps = {
        shape: np.diff([a.at_s for a in ClientLoad(4.0, (client(1, 9, shape=shape),)).arrivals(0)])
        for shape in (0.1, 1.0)
    }
    variation = {shape: np.std(found) / np.mean(found) for shape, found in gaps.items()}
    assert variation[1.0] == pytest.approx(1.0, abs=0.1) and variation[0.1] > 2


def test_load_begins_at_the_start_that_is_given() -> None:
    load = ClientLoad(4.0, (client(1.0, 9),))
    late = list(replace(load, start_s=900.0).arrivals(0))
    assert 0 <= late[0].at_s < 10
    assert len(late) == pytest.approx(4 * 300, rel=0.2)
    first_minute = takewhile(lambda arrival: arrival.at_s < 60, late)
    assert len(list(first_minute)) == pytest.approx(240, rel=0.3)


def test_load_with_equal_seeds_is_equal_and_with_others_different() -> None:
    load = ClientLoad(4.0, (client(1.0, 9),))
    first, again, other = (list(load.arrivals(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert load.at(2.0).intensity == 2.0


@pytest.mark.parametrize(
    ("rate", "start_s"), [(0.0, 0.0), (1e5, 0.0), (float("nan"), 0.0), (1.0, 1200.0)]
)
def test_impossible_client_load_raises(rate: float, start_s: float) -> None:
    with pytest.raises(ValueError):
        ClientLoad(rate, (client(1.0, 9),), start_s)
