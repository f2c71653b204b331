"""Files of measured delays: every format, every declaration, and an error for each thing unsaid."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from exactlyonce_env.errors import UserError
from exactlyonce_env.measured import DelayFileOptions, MeasuredDelays, read_delays

SAMPLES = Path(__file__).parents[1] / "data" / "delays"


def read(path: Path, **options: Any) -> MeasuredDelays:
    return read_delays(path, DelayFileOptions(**options))


def wrong(path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "delays.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_delay_samples", SAMPLES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the sample files ------------------------------------------------------------------------


def test_the_samples_are_what_their_generator_writes(make: ModuleType) -> None:
    for name, text in make.TEXTS.items():
        assert (SAMPLES / name).read_text(encoding="utf-8") == text()
    calls = read(SAMPLES / "calls.parquet", timeout_markers=("-1",), censored_at=1.5)
    seconds = [1.5 if value < 0.0 else value for value, _ in make.calls_rows()]
    assert calls.times_s.tolist() == seconds
    samples = read(SAMPLES / "monitor.xlsx", column="Latency", drop_markers=("0",), unit="s")
    assert samples.times_s.tolist() == [row[2] for row in make.monitor_rows()[1:] if row[2]]


def test_headerless_csv() -> None:
    delays = read(SAMPLES / "headerless.csv", unit="ms", censored_at=6000.0)
    assert (delays.n, delays.censored) == (240, 2)
    assert delays.times_s[0] == 3.15 / 1000.0
    assert delays.times_s[~delays.completed].tolist() == [6.0, 6.0]
    assert (delays.column, delays.unit, delays.kind) == ("column 3", "ms", "text")
    assert "no header; columns count from 1" in delays.notes
    assert "column 3 is the only numeric one" in delays.notes
    assert len(delays.sha256) == 64


def test_rows_can_be_chosen_by_another_column() -> None:
    some = read(SAMPLES / "headerless.csv", unit="ms", where=("1=fn-beta-*",))
    one = read(SAMPLES / "headerless.csv", unit="ms", where=("1=fn-beta-*", "1=*-512"))
    assert (some.n, one.n) == (160, 80)
    assert "--where keeps 80 of 240 rows" in one.notes
    message = wrong(SAMPLES / "headerless.csv", unit="ms", where=("1=gamma",))
    assert "no row meets --where '1=gamma'" in message
    assert "fn-alpha-128" in message


def test_a_suspected_timeout_is_asked_about_and_not_guessed() -> None:
    delays = read(SAMPLES / "headerless.csv", unit="ms")
    assert delays.censored == 0
    assert any("say --censored-at 6000" in warning for warning in delays.warnings)
    said = read(SAMPLES / "headerless.csv", unit="ms", censored_at=6000.0)
    assert not any("--censored-at" in warning for warning in said.warnings)


def test_matrix() -> None:
    delays = read(SAMPLES / "matrix.txt", column="all")
    assert delays.n == 15 * 12
    cells = [line.split("\t")[:12] for line in (SAMPLES / "matrix.txt").read_text().splitlines()]
    assert delays.times_s.tolist() == [float(row[j]) for j in range(12) for row in cells]
    assert any("columns explain" in warning for warning in delays.warnings)
    third = read(SAMPLES / "matrix.txt", column="3")
    assert third.times_s.tolist() == [float(row[2]) for row in cells]
    message = wrong(SAMPLES / "matrix.txt")
    assert "12 numeric columns: 1, 2, 3" in message
    assert "--column all" in message


def test_jmeter_results() -> None:
    delays = read(SAMPLES / "results.jtl")
    lines = (SAMPLES / "results.jtl").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    kept = [(int(row[1]) / 1000.0, row[6] == "true") for row in rows if row[1] != "0"]
    assert list(zip(delays.times_s.tolist(), delays.completed.tolist(), strict=True)) == kept
    assert (delays.unit, delays.column, delays.kind) == ("ms", "column 'elapsed'", "jtl")
    assert "2 rows failed after 0 ms and say nothing; left out" in delays.notes
    assert any("failed rows with an HTTP status" in warning for warning in delays.warnings)
    only = read(SAMPLES / "results.jtl", where=("label=cancel order",), column="Latency")
    assert only.n == sum(row[2] == "cancel order" and row[1] != "0" for row in rows)


def test_event_log_with_entry_times() -> None:
    delays = read(SAMPLES / "event_log.csv", entry_column="entry_s", event_column="completed")
    rows = [line.split(",") for line in (SAMPLES / "event_log.csv").read_text().split()[1:]]
    assert delays.n == len(rows)
    assert delays.entry_s is not None
    assert delays.entry_s.tolist() == [float(row[1]) for row in rows]
    assert delays.times_s.tolist() == [float(row[2]) for row in rows]
    assert delays.completed.tolist() == [row[3] == "1" for row in rows]
    assert (delays.column, delays.unit) == ("column 'seen_s'", "s")


def test_json_lines_with_nulls() -> None:
    path = SAMPLES / "calls.jsonl"
    message = wrong(path)
    assert "7 values of column 'timing.latency_ms' are blank (first: line 32)" in message
    assert "--timeout-marker blank" in message
    assert "7 rows timed out but do not say when" in wrong(path, timeout_markers=("blank",))
    delays = read(path, timeout_markers=("blank",), censored_at=2000.0)
    assert (delays.n, delays.censored, delays.unit) == (150, 7, "ms")
    assert delays.times_s[0] == 0.8304
    assert read(path, drop_markers=("blank",)).n == 143


def test_parquet_with_a_marker() -> None:
    path = SAMPLES / "calls.parquet"
    message = wrong(path)
    assert "3 values of column 'duration_s' are negative (first: row 35, '-1')" in message
    assert "--timeout-marker -1" in message
    delays = read(path, timeout_markers=("-1",), censored_at=1.5)
    assert (delays.n, delays.censored, delays.unit) == (120, 3, "s")
    assert delays.times_s[34] == 1.5
    assert not delays.completed[34]


def test_workbook_with_zeros() -> None:
    path = SAMPLES / "monitor.xlsx"
    assert "3 numeric columns: 2 (Hour), 3 (Latency), 4 (Requests)" in wrong(path)
    message = wrong(path, column="Latency")
    assert "51 values of column 'Latency' are zero (first: row 2, '0')" in message
    assert "--drop-marker 0" in message
    delays = read(path, column="Latency", unit="ms", drop_markers=("0",))
    assert (delays.n, delays.kind) == (45, "xlsx")
    assert delays.times_s.min() >= 0.02
    assert "has no sheet 'other'; choose from samples" in wrong(path, sheet="other")


# ---- finding columns, headers, delimiters, units ------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "times"),
    [
        ("1\n2\n3\n", {}, [1, 2, 3]),
        ("delay\n1\n2\n3", {}, [1, 2, 3]),
        ('"1.5"\n"2"\n"3"\n', {}, [1.5, 2, 3]),
        ("a,1\nb,2\nc,3\n", {}, [1, 2, 3]),
        ("x;d\na;1.5\nb;2.5\nc;3.5\n", {}, [1.5, 2.5, 3.5]),
        ("a|1\nb|2\nc|3\n", {}, [1, 2, 3]),
        ("a\t1\nb\t2\nc\t3\n", {}, [1, 2, 3]),
        ("a  1\nb    2\n c 3\n", {}, [1, 2, 3]),
        ("# made up\n\na,1\n\nb,2\nc,3\n\n", {}, [1, 2, 3]),
        ('who,d\n"a,\nb",1\nc,2\nd,3\n', {}, [1, 2, 3]),
        (",latency\n0,1\n1,2\n2,3\n", {"column": "latency"}, [1, 2, 3]),
        ("a,b\n1,4\n2,5\n3,6\n", {"column": "b"}, [4, 5, 6]),
        ("a,b\n1,4\n2,5\n3,6\n", {"column": "2"}, [4, 5, 6]),
        ("1,4\n2,5\n3,6\n", {"column": "1"}, [1, 2, 3]),
        ("1,4\n2,5\n3,6\n", {"column": "all"}, [1, 2, 3, 4, 5, 6]),
        ("all,b\n1,4\n2,5\n3,6\n", {"column": "all"}, [1, 2, 3]),
        ("2,b\n1,4\n", {"column": "1", "header": True}, None),
        ("1,4,\n2,5,\n3,6,\n", {"column": "2"}, [4, 5, 6]),
        ("a,b\n1,4,\n2,5,\n3,6,\n", {"column": "b"}, [4, 5, 6]),
        ("\ufeffd\n1\n2\n3\n", {"column": "d"}, [1, 2, 3]),
        ("1\r\n2\r\n3\r\n", {}, [1, 2, 3]),
        ("1e-1\n+2\n3.\n", {}, [0.1, 2, 3]),
        ("ok,1\nok,2\nok,3\n", {"header": False}, [1, 2, 3]),
        ("a b;1\nb c;2\nd e;3\n", {}, [1, 2, 3]),
    ],
)
def test_text_in_many_dresses(
    file: Any, text: str, options: dict[str, Any], times: list[float] | None
) -> None:
    path = file(text)
    if times is None:
        assert "is not in the file" in wrong(path, **{**options, "column": "c"})
    else:
        assert read(path, **options).times_s.tolist() == times


def test_utf16_as_spreadsheets_export_it(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_text("name\tdelay_ms\na\t1\nb\t2\nc\t3\n", encoding="utf-16")
    assert read(path).times_s.tolist() == [0.001, 0.002, 0.003]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("delay_ms", "ms"), ("Latency (ms)", "ms"), ("durationMs", "ms"), ("elapsed millis", "ms"),
        ("ms", "ms"), ("t[ms]", "ms"), ("delay_s", "s"), ("wait (sec)", "s"), ("seconds", "s"),
        ("requests", None), ("ATOMS", None), ("delay", None), ("Status", None),
    ],
)  # fmt: skip
def test_units_by_name(file: Any, name: str, unit: str | None) -> None:
    delays = read(file(f"{name}\n1\n2\n3\n"))
    assert delays.unit == (unit or "s")
    assert delays.times_s[0] == (0.001 if unit == "ms" else 1.0)
    origin = "by the column's name" if unit else "by default"
    assert any(note.startswith(f"unit {delays.unit}, {origin}") for note in delays.notes)


def test_the_user_has_the_last_word_on_the_unit(file: Any) -> None:
    delays = read(file("delay_ms\n1\n2\n3\n"), unit="s")
    assert delays.times_s[0] == 1.0
    assert any("although a name says ms" in warning for warning in delays.warnings)
    path = file("seen_s,entry_ms\n1,0\n2,1\n3,1\n")
    message = wrong(path, column="seen_s", entry_column="entry_ms")
    assert "do not agree on a unit" in message
    said = read(path, column="seen_s", entry_column="entry_ms", unit="s")
    assert said.entry_s is not None
    assert said.entry_s.tolist() == [0.0, 1.0, 1.0]
    assert "do not agree" in wrong(file("a_s,b_ms\n1,2\n3,4\n"), column="all")


def test_assumed_seconds_that_look_like_milliseconds_are_warned_about(file: Any) -> None:
    delays = read(file("delay\n" + "250\n310\n280\n" * 5))
    assert any("say --unit ms" in warning for warning in delays.warnings)
    said = read(file("delay\n" + "250\n310\n280\n" * 5), unit="s")
    assert not any("--unit" in warning for warning in said.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "a,delay\na,1\nb,2\nc,3\n",  # a "name" that comes again below
        "a,timeout\nb,1\nc,2\nd,3\n",  # a marker where a name should be
        "a,\nb,1\nc,2\nd,3\n",  # a blank one
        "a,a\nb,1\nc,2\nd,3\n",  # the same name twice
        "nan\n1\n2\n3\n",
    ],
)
def test_an_unclear_header_is_asked_about(file: Any, text: str) -> None:
    message = wrong(file(text))
    assert "cannot tell whether the first line" in message
    assert "--header or --no-header" in message
    assert read(file(text), header=True, column=str(text.split("\n")[0].count(",") + 1)).n == 3


def test_delimiters_that_compete_are_asked_about(file: Any) -> None:
    path = file("1;0,5\n2;0,6\n3;0,7\n")
    assert "splits evenly by comma and by semicolon; say which with --delimiter" in wrong(path)
    assert read(path, delimiter="semicolon", column="1").n == 3
    assert "3 values of column 2 are no numbers (first: line 1, '0,5')" in wrong(
        path, delimiter=";", column="2"
    )


# ---- censoring, entry, markers -------------------------------------------------------------------


def test_censoring_at_a_cap(file: Any) -> None:
    delays = read(file("1\n5\n6\n9\n"), censored_at=5.0)
    assert delays.times_s.tolist() == [1, 5, 5, 5]
    assert delays.completed.tolist() == [True, False, False, False]


def test_event_column(file: Any) -> None:
    path = file("d,done\n1,1\n2,0\n3,TRUE\n4,no\n9,1\n")
    delays = read(path, event_column="done", column="d")
    assert delays.completed.tolist() == [True, False, True, False, True]
    both = read(path, event_column="2", column="d", censored_at=5.0)
    assert both.times_s.tolist() == [1, 2, 3, 4, 5]
    assert both.completed.tolist() == [True, False, True, False, False]
    message = wrong(file("d,done\n1,1\n2,maybe\n3,1\n"), event_column="done")
    assert "neither 1/true (completed) nor 0/false (censored)" in message
    assert "'maybe', line 3" in message


def test_open_rows_without_a_time_are_censored_at_the_timeout(file: Any) -> None:
    path = file("d,done\n1,1\n,0\n-1,0\n4,1\n")
    assert "2 rows timed out but do not say when (first: line 3)" in wrong(
        path, event_column="done", column="d"
    )
    delays = read(path, event_column="done", column="d", censored_at=9.0)
    assert delays.times_s.tolist() == [1, 9, 9, 4]
    assert delays.completed.tolist() == [True, False, False, True]


def test_a_timeout_of_its_own_for_every_row(file: Any) -> None:
    path = file("d,limit\n1,3\n-1,2\n5,4\n3.5,4\n")
    delays = read(path, column="d", limit_column="limit", timeout_markers=("-1",))
    assert delays.times_s.tolist() == [1, 2, 4, 3.5]
    assert delays.completed.tolist() == [True, False, False, True]
    assert "not above 0 (first: line 3)" in wrong(
        file("d,limit\n1,3\n2,\n5,4\n"), column="d", limit_column="limit"
    )


def test_markers_by_number_word_and_blank(file: Any) -> None:
    path = file("who,d\na,1\nb,-1.0\nc,Timeout\nd,\ne,7\nf,skip\ng,2\n")
    delays = read(
        path, timeout_markers=("-1", "timeout", "blank"), drop_markers=("skip",), censored_at=9.0
    )
    assert delays.times_s.tolist() == [1, 9, 9, 9, 7, 2]
    assert delays.censored == 3
    assert "1 rows dropped as no request (--drop-marker)" in delays.notes
    unmet = read(file("1\n2\n3\n"), drop_markers=("-9",))
    assert "no cell equals --drop-marker -9" in unmet.notes


def test_zeros_may_be_real(file: Any) -> None:
    delays = read(file("0\n2\n3\n0\n"), keep_zeros=True)
    assert delays.times_s.tolist() == [2, 2, 3, 2]
    assert delays.censored == 0
    assert any("2 zeros taken as the least positive delay, 2" in note for note in delays.notes)


def test_delayed_entry(file: Any) -> None:
    path = file("entry,d\n0,1\n1,2\n6,7\n6,9\n5,7\n")
    delays = read(path, column="d", entry_column="entry", unit="ms")
    assert delays.entry_s is not None
    assert delays.entry_s.tolist() == [0.0, 0.001, 0.006, 0.006, 0.005]
    capped = read(path, column="d", entry_column="entry", censored_at=6.0)
    assert capped.times_s.tolist() == [1.0, 2.0, 6.0]
    assert "2 rows entered after the time-out; left out" in capped.notes
    assert "1 rows enter at or after their own delay (first: line 3, entry 2, delay 2)" in wrong(
        file("entry,d\n0,1\n2,2\n1,7\n"), column="d", entry_column="entry"
    )
    assert "no number >= 0 (first: line 3)" in wrong(
        file("entry,d\n0,1\n,2\n1,7\n"), column="d", entry_column="entry"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\n-2\n-3\n4\n", "2 values of column 1 are negative (first: line 2, '-2')"),
        ("1\nnan\n3\n4\n", "1 values of column 1 are no numbers (first: line 2, 'nan')"),
        ("1\n2\ninf\n4\n", "are no numbers (first: line 3, 'inf')"),
        ("1\n\n3\n4\n", "1 values of column 1 are blank (first: line 2)"),
        ("1\n2\n0\n4\n", "1 values of column 1 are zero (first: line 3, '0')"),
        ("1\n2\ntimed out\n4\n", "say --timeout-marker 'timed out'"),
        ("1\n2\n12ms\n4\n", "are no numbers (first: line 3, '12ms')"),
        ("1\n2\n1_000\n4\n", "are no numbers (first: line 3, '1_000')"),
        ("a,1\nb,2\nc\nd,4\n", "malformed: line 3 has 1 cells where the others have 2"),
        ("a,1\nb,2\nc,3,9\nd,4\n", "malformed: line 3 has 3 cells where the others have 2"),
        ("Report\na,1\nb,2\nc,3\n", "malformed: line 1 has 1 cells"),
        ("a,b\nc,d\n", "no numeric column that could be a delay"),
        ("1\n2\n", "2 usable rows in column 1; at least 3 are needed"),
        ("delay\n", "is empty: it holds a header"),
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("# nothing\n", "is empty: it holds no line of data"),
        ("<?xml version='1.0'?><testResults/>", "is XML; save JMeter results as CSV"),
        ("a\0b", "is not a text file: it holds zero bytes"),
    ],
)
def test_what_cannot_be_read_is_named(file: Any, text: str, words: str) -> None:
    header = True if text == "delay\n" else None
    assert words in wrong(file(text), header=header)


def test_a_single_word_line_is_not_taken_for_an_empty_table(file: Any) -> None:
    assert "no numeric column" in wrong(file("delay\n"))


def test_other_mistakes(file: Any, tmp_path: Path) -> None:
    assert "does not exist" in wrong(tmp_path / "none.csv")
    assert "cannot read" in wrong(tmp_path)
    path = file("a,b,c\nx,1,2\ny,3,4\nz,5,6\n")
    assert "2 numeric columns: 2 (b), 3 (c)" in wrong(path)
    assert "column 'd' is not in the file; choose from 1 (a), 2 (b), 3 (c)" in wrong(
        path, column="d"
    )
    assert "column '0' is not in the file" in wrong(path, column="0")
    assert "event column 'e' is not in the file" in wrong(path, column="b", event_column="e")
    assert "3 values of column 'a' are no numbers" in wrong(path, column="a")
    assert "all 3 rows are censored" in wrong(path, column="b", censored_at=0.5)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"d\xe9lai\n1\n2\n3\n")
    assert "is not UTF-8 text (byte 1)" in wrong(latin)
    assert "does not hold what its name says" in wrong(file("1\n2\n3\n", "d.parquet"))
    assert "no readable Parquet file" in wrong(file("PAR1 is how it starts", "d.parquet"))
    assert "no readable xlsx workbook" in wrong(file("PK\x03\x04 is how it starts", "d.xlsx"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "us"}, "unknown unit 'us'; choose from ms, s"),
        ({"censored_at": 0.0}, "must be a number above 0, not 0.0"),
        ({"censored_at": float("nan")}, "must be a number above 0"),
        ({"censored_at": 1.0, "limit_column": "a"}, "not both"),
        ({"timeout_markers": ("0",), "drop_markers": ("0",)}, "marker '0' cannot mean both"),
        ({"delimiter": "::"}, "must be one character or one of comma"),
        ({"where": ("label",)}, "must read column=pattern"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        DelayFileOptions(**options)
    assert words in str(caught.value)


def test_options_given_are_recorded() -> None:
    options = DelayFileOptions(column="3", unit="ms", drop_markers=("0",), header=False)
    assert json.loads(json.dumps(options.to_json())) == {
        "column": "3", "unit": "ms", "drop_markers": ["0"], "header": False,
    }  # fmt: skip


# ---- json lines, parquet, workbooks ------------------------------------------------------------


def test_json_lines_of_bare_numbers(file: Any) -> None:
    assert read(file("1\n2.5\n3\n", "d.jsonl")).times_s.tolist() == [1, 2.5, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"d": 1}\n{"d": }\n', "malformed: line 2 is no JSON"),
        ('{"d": 1}\n[1]\n', "line 2 holds a list"),
        ('{"d": 1}\n2\n', "mixes bare numbers and objects"),
        ('{"d": 1}\n{"d": NaN}\n{"d": 3}\n', "no numbers (first: line 2, 'nan')"),
        ('{"d": 1}\n{"e": 2}\n{"d": 3}\n', "2 numeric columns: 1 (d), 2 (e)"),
        ('{"d": 1}\n{"e": "x"}\n{"d": 3}\n', "column 'd' are blank (first: line 2)"),
    ],
)
def test_json_lines_that_cannot_be_read(file: Any, text: str, words: str) -> None:
    assert words in wrong(file(text, "d.jsonl"))


def test_typed_columns_of_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "d.parquet"
    table = {
        "call": ["a", "b", "c", "d"],
        "wait_ms": pa.array([1, None, 30, 4], pa.int32()),
        "done": [True, False, True, True],
    }
    pq.write_table(pa.table(table), path)
    assert "are blank (first: row 2)" in wrong(path)
    delays = read(path, event_column="done", censored_at=20.0)
    assert delays.times_s.tolist() == [0.001, 0.02, 0.02, 0.004]
    assert delays.completed.tolist() == [True, False, False, True]
    pq.write_table(pa.table({"d": pa.array([], pa.float64())}), path)
    assert "is empty" in wrong(path)
    pq.write_table(pa.table({"d": [1.0, float("nan"), 3.0]}), path)
    assert "no numbers (first: row 2, 'nan')" in wrong(path)


def test_workbooks_of_several_sheets(tmp_path: Path) -> None:
    import openpyxl

    path = tmp_path / "d.xlsx"
    book = openpyxl.Workbook()
    book.active.title = "one"
    other = book.create_sheet("two")
    for row in (("who", "delay_ms"), ("a", 1), (None, None), ("b", 2), ("c", -5)):
        other.append(row)
    book.save(path)
    assert "has 2 sheets; say --sheet and one of one, two" in wrong(path)
    assert "sheet 'one' holds no row" in wrong(path, sheet="one")
    assert "negative (first: row 5, '-5')" in wrong(path, sheet="two")
    assert "2 usable rows" in wrong(path, sheet="two", drop_markers=("-5",))


# ---- suspicions ---------------------------------------------------------------------------------


def test_a_pile_at_the_longest_delay_is_asked_about(file: Any) -> None:
    text = "d_ms\n" + "".join(f"{k}\n" for k in range(1, 60)) + "7000\n" * 4
    (warning,) = read(file(text)).warnings
    assert "4 completed rows share the longest delay, 7 s" in warning
    assert "--censored-at 7000" in warning


def test_a_tail_cut_just_below_a_round_time_is_warned_about(file: Any) -> None:
    rng = np.random.Generator(np.random.Philox(3))
    values = np.append(rng.uniform(0.1, 19.0, 1200), 19.9)
    text = "d_s\n" + "".join(f"{v:.4f}\n" for v in values)
    assert any("lies just below 20 s" in w for w in read(file(text)).warnings)
    few = "d_s\n" + "".join(f"{v:.4f}\n" for v in values[-50:])
    assert read(file(few)).warnings == ()


def test_neighbours_that_are_alike_are_warned_about(file: Any) -> None:
    rng = np.random.Generator(np.random.Philox(4))
    kinds = np.repeat([0.1, 5.0, 0.4, 2.0], 60) * rng.uniform(0.8, 1.2, 240)
    text = "d_s\n" + "".join(f"{v:.5f}\n" for v in kinds)
    assert any("rows next to each other are alike" in w for w in read(file(text)).warnings)
    shuffled = "d_s\n" + "".join(f"{v:.5f}\n" for v in rng.permutation(kinds))
    assert read(file(shuffled)).warnings == ()
    ordered = "d_s\n" + "".join(f"{v:.5f}\n" for v in np.sort(kinds))
    assert read(file(ordered)).warnings == ()
