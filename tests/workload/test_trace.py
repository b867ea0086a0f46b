"""Trace files: three formats, and errors with line numbers."""

import contextlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macroserve.workload.arrivals import Arrival
from macroserve.workload.trace import TimeUnit, read_trace

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.fixture
def trace_file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param(
            f"{AZURE_HEADER}\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
            "2023-11-16 18:15:50.9951690,396,109",
            [(0.0, 374, 44), (4.314579, 396, 109)],
            id="azure-2023-crlf-no-last-line-end",
        ),
        pytest.param(
            f"{AZURE_HEADER}\n2024-05-12 00:00:00+00:00,10,1\n2024-05-12 02:00:01.5+02:00,20,2\n",
            [(0.0, 10, 1), (1.5, 20, 2)],
            id="azure-2024-with-zones",
        ),
        pytest.param(
            "\ufeffGeneratedTokens, TIMESTAMP, extra, ContextTokens\n"
            "\n7, 2023-11-16 18:15:46, x, 8\n",
            [(0.0, 8, 7)],
            id="columns-in-any-order",
        ),
        pytest.param(
            '{"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [1]}\n'
            '{"timestamp": 30500, "input_length": 7322, "output_length": 490, "hash_ids": []}\n',
            [(0.0, 6758, 500), (3.5, 7322, 490)],
            id="mooncake-milliseconds",
        ),
        pytest.param(
            '{"timestamp": 0.0, "input_length": 1.0, "output_length": 2}\n'
            '{"timestamp": 1000.5, "input_length": 3, "output_length": 4}\n'
            '{"timestamp": 3000.0, "input_length": 5, "output_length": 6}\n',
            [(0.0, 1, 2), (1.0005, 3, 4), (3.0, 5, 6)],
            id="mooncake-milliseconds-of-a-table-of-floats",
        ),
        pytest.param(
            '"","TIMESTAMP","ContextTokens","GeneratedTokens","note"\n'
            '"1","2023-11-16 18:15:46","1","2","a, ""b"""\n'
            '"2","2023-11-16T18:15:49Z","3.0","4","two\nlines"\n',
            [(0.0, 1, 2), (3.0, 3, 4)],
            id="azure-quoted-with-an-index",
        ),
        pytest.param(
            '{"arrival_s": 2, "prompt_tokens": 5, "output_tokens": 6}\n'
            '{"arrival_s": 1, "prompt_tokens": 7, "output_tokens": 8}\n',
            [(0.0, 7, 8), (1.0, 5, 6)],
            id="plain-out-of-order-whole-seconds",
        ),
    ],
)
def test_read_trace_of_each_published_form_returns_its_rows(
    trace_file, text: str, rows: list
) -> None:
    trace = read_trace(trace_file(text), lenient=False)
    assert trace.num_skipped == 0
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in trace.rows] == [r[1:] for r in rows]
    assert [r.at_s for r in trace.rows] == pytest.approx([r[0] for r in rows])


def test_read_trace_of_dates_without_a_zone_takes_them_as_utc(trace_file, monkeypatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        # On that night, clocks in New York jumped from 2 to 3 o'clock.
        text = f"{AZURE_HEADER}\n2024-03-10 01:59:59,1,1\n2024-03-10 03:00:00,2,2\n"
        trace = read_trace(trace_file(text), lenient=False)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert trace.rows[1].at_s == 3601.0


GOOD_CSV = "2023-11-16 18:15:46,374,44"
GOOD_JSON = '{"timestamp": 1, "input_length": 2, "output_length": 3}'


@pytest.mark.parametrize(
    ("header", "good", "bad", "fault"),
    [
        (AZURE_HEADER, GOOD_CSV, "2023-11-16 18:15:46,374", "2 fields where the header has 3"),
        (AZURE_HEADER, GOOD_CSV, "yesterday,1,2", "TIMESTAMP is 'yesterday', expected a date"),
        (
            AZURE_HEADER,
            GOOD_CSV,
            "2023-11-16 18:15:46,1,0",
            "GeneratedTokens is '0', expected a whole number of at least 1",
        ),
        (AZURE_HEADER, GOOD_CSV, "2023-11-16 18:15:46,-3,1", "ContextTokens is '-3'"),
        (AZURE_HEADER, GOOD_CSV, "2023-11-16 18:15:46,1.5,1", "ContextTokens is '1.5'"),
        (AZURE_HEADER, GOOD_CSV, "2023-11-16 18:15:46,9999999999,1", "ContextTokens is '99999"),
        ("", GOOD_JSON, '{"timestamp": 1, "input_length": 2', "not a JSON object"),
        ("", GOOD_JSON, "[1, 2, 3]", "not a JSON object"),
        ("", GOOD_JSON, '{"timestamp": 1, "input_length": 2}', "output_length is missing"),
        (
            "",
            GOOD_JSON,
            '{"timestamp": "1", "input_length": 2, "output_length": 3}',
            "timestamp is '1', expected a number",
        ),
        ("", GOOD_JSON, '{"timestamp": true, "input_length": 2, "output_length": 3}', "timestamp"),
        ("", GOOD_JSON, '{"timestamp": 1e300, "input_length": 2, "output_length": 3}', "timestamp"),
        (
            "",
            GOOD_JSON,
            '{"timestamp": 1, "input_length": true, "output_length": 3}',
            "input_length is True, expected a whole number",
        ),
        ("", GOOD_JSON, '{"timestamp": 1, "input_length": 2.5, "output_length": 3}', "is 2.5"),
    ],
)
def test_read_trace_of_a_bad_row_names_file_line_and_fault_or_counts_it(
    trace_file, header: str, good: str, bad: str, fault: str
) -> None:
    lines = [header] * bool(header) + [good, "", bad, good]
    path = trace_file("\n".join(lines))
    with pytest.raises(ValueError, match="line") as refusal:
        read_trace(path, lenient=False)
    line_number = lines.index(bad) + 1
    assert str(refusal.value).startswith(f"{path}, line {line_number}: ")
    assert fault in str(refusal.value)

    trace = read_trace(path, lenient=True)
    assert (len(trace.rows), trace.num_skipped) == (2, 1)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (AZURE_HEADER, "no usable row"),
        ("time,in,out\n1,2,3\n", "neither JSON lines nor a CSV file with the columns TIMESTAMP"),
        (f"{AZURE_HEADER};\n".replace(",", ";"), "separates its columns by ';'; commas are read"),
        (AZURE_HEADER.replace(",", "\t"), "separates its columns by"),
        (f"{AZURE_HEADER},TIMESTAMP\n", "has the column TIMESTAMP more than once"),
        ('"TIMESTAMP,ContextTokens', "is not a CSV file"),
    ],
)
def test_read_trace_of_a_file_without_rows_raises(trace_file, text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_trace(trace_file(text), lenient=True)


def test_read_trace_of_an_unreadable_file_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        read_trace(tmp_path / "none.csv", lenient=True)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        read_trace(binary, lenient=True)


@given(text=st.text(max_size=200))
def test_read_trace_of_any_text_returns_or_raises_a_sentence(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any-trace"
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(ValueError):
        read_trace(path, lenient=False)
    path.write_text(f"{AZURE_HEADER}\n{GOOD_CSV}\n{text}", encoding="utf-8")
    assert Arrival(0.0, 374, 44) in read_trace(path, lenient=True).rows


def mooncake(*timestamps: float) -> str:
    row = '{{"timestamp": {}, "input_length": 1, "output_length": 2}}'
    return "\n".join(row.format(timestamp) for timestamp in timestamps)


@pytest.mark.parametrize("timestamps", [(27, 30.5), (0, 1, 3), (0.5, 1.25, 3.75)])
def test_read_trace_dense_in_milliseconds_asks_for_its_unit(trace_file, timestamps) -> None:
    path = trace_file(mooncake(*timestamps))
    with pytest.raises(ValueError, match="--trace-unit s or --trace-unit ms"):
        read_trace(path, lenient=True)
    span = timestamps[-1] - timestamps[0]
    seconds = read_trace(path, lenient=False, unit=TimeUnit.SECONDS)
    assert seconds.rows[-1].at_s == pytest.approx(span)
    milliseconds = read_trace(path, lenient=False, unit=TimeUnit.MILLISECONDS)
    assert milliseconds.rows[-1].at_s == pytest.approx(span / 1000)


def test_read_trace_with_bursts_counts_each_timestamp_once_for_its_unit(trace_file) -> None:
    trace = read_trace(trace_file(mooncake(*[0] * 400, *[3000] * 400)), lenient=False)
    assert trace.rows[-1].at_s == 3.0


@pytest.mark.parametrize(
    "text",
    [f"{AZURE_HEADER}\n{GOOD_CSV}", '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1}'],
)
def test_read_trace_with_a_unit_for_a_form_that_has_one_raises(trace_file, text: str) -> None:
    with pytest.raises(ValueError, match="--trace-unit is for timestamp"):
        read_trace(trace_file(text), lenient=False, unit=TimeUnit.SECONDS)


def test_hash_ids_of_mooncakes_rows_are_block_ids(trace_file) -> None:
    path = trace_file(
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [3, 0]}\n'
        '{"timestamp": 3000, "input_length": 7, "output_length": 9}\n'
    )
    assert [row.block_ids for row in read_trace(path, lenient=False).rows] == [(3, 0), ()]


def test_hash_ids_of_smaller_blocks_are_refused(trace_file) -> None:
    """An id of theirs would stand for 512 tokens."""
    row = '{{"timestamp": 0, "input_length": {}, "output_length": 5, "hash_ids": [1, 2]}}\n'
    fault = r"line 2: hash_ids has 2 ids, and input_length has 1 blocks of 512 tokens"
    with pytest.raises(ValueError, match=fault):
        read_trace(trace_file(row.format(513) + row.format(512)), lenient=False)


def test_row_that_is_nested_too_deeply_is_refused(trace_file) -> None:
    nested = '{"timestamp": ' + "[" * 100_000
    with pytest.raises(ValueError, match="line 1: not a JSON object"):
        read_trace(trace_file(nested), lenient=False)


def test_times_that_nobody_reads_need_no_unit(trace_file) -> None:
    text = mooncake(*range(400))
    with pytest.raises(ValueError, match="--trace-unit"):
        read_trace(trace_file(text), lenient=False)
    assert len(read_trace(trace_file(text), lenient=False, uses_times=False).rows) == 400


@pytest.mark.parametrize("ids", ["7", "[-1]", '["a"]', "[0.5]", "null", "[true]"])
def test_hash_ids_that_are_no_whole_numbers_are_refused(trace_file, ids: str) -> None:
    path = trace_file(
        f'{{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": {ids}}}\n'
    )
    with pytest.raises(ValueError, match=r"line 1: hash_ids is .*, expected a list of whole"):
        read_trace(path, lenient=False)
