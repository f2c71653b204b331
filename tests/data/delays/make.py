"""Write the synthetic delay files of this folder: ``python make.py [FOLDER]``.

Each has the shape of a kind of file that users bring; every value in them is made up.  The same
numbers come out on every machine: draws of a counter-based generator, rounded to the file's digits.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent


def draws(stream: int, n: int) -> np.ndarray:
    """Uniform numbers (n,) of one stream."""
    return np.random.Generator(np.random.Philox(key=20, counter=stream << 64)).random(n)


def exponential(stream: int, n: int, scale: float) -> np.ndarray:
    """Exponential delays (n,) with the mean ``scale``."""
    return -scale * np.log1p(-draws(stream, n))


def lines(rows: list[list[object]]) -> str:
    """Rows as CSV text."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def headerless_csv() -> str:
    """Function, date as JavaScript prints it, milliseconds; two rows sit on a 6 s time-out."""
    start = datetime.datetime(2031, 1, 6, 9, 0)
    slow = exponential(1, 240, 900.0)
    fast = 2.0 + exponential(2, 240, 5.0)
    rows: list[list[object]] = []
    for i, u in enumerate(draws(3, 240)):
        when = (start + datetime.timedelta(minutes=3 * i)).strftime("%a %b %d %Y %H:%M:%S")
        name = ("fn-alpha-128", "fn-beta-512", "fn-beta-1024")[i % 3]
        delay = min(slow[i], 5500.0) if u < 0.3 else fast[i]
        rows.append([name, f"{when} GMT+0100 (CET)", f"{delay:.2f}"])
    rows[70][2], rows[191][2] = "6003.41", "6002.87"
    return lines(rows)


def matrix_txt() -> str:
    """Clients by services, seconds, tab-separated, a tab too many at the end of each line."""
    levels = 0.1 * np.exp(3.0 * draws(4, 12))
    cells = levels * (0.5 + exponential(5, 15 * 12, 1.0).reshape(15, 12))
    return "".join("".join(f"{cell:.3f}\t" for cell in row) + "\n" for row in cells)


def results_jtl() -> str:
    """JMeter results: time-outs at 3 s, two refused at once, one answered with HTTP 500."""
    names = "timeStamp,elapsed,label,responseCode,responseMessage,threadName,success,bytes,Latency"
    rows: list[list[object]] = [list(names.split(","))]
    gone = "Non HTTP response code: java.net.SocketTimeoutException"
    refused = "Non HTTP response code: java.net.ConnectException"
    clock = 1_900_000_000_000
    for i, delay in enumerate(exponential(6, 200, 1200.0)):
        elapsed = max(round(float(delay)), 1)
        code, message, ok = "201", "Created", "true"
        if elapsed >= 3000:
            elapsed, code, message, ok = 3000 + i % 4, gone, "Read timed out", "false"
        if i in (17, 18):
            elapsed, code, message, ok = 0, refused, "Connection refused", "false"
        if i == 99:
            code, message, ok = "500", "Internal Server Error", "false"
        clock += 250
        label = ("create order", "cancel order")[i % 2]
        rows.append([clock, elapsed, label, code, message, f"users 1-{i % 5}", ok, 512, elapsed])
    return lines(rows)


def event_log_csv() -> str:
    """Writes seen by a watcher that came late: entry, last seen, completed or still open."""
    rows: list[list[object]] = [["operation", "entry_s", "seen_s", "completed"]]
    delays, entries, ends = (exponential(k, 400, s) for k, s in ((7, 60.0), (8, 20.0), (9, 150.0)))
    for i in range(400):
        if delays[i] > entries[i] and ends[i] > entries[i] + 0.01:
            seen = max(min(delays[i], ends[i]), entries[i] + 0.002)
            done = int(delays[i] <= ends[i])
            rows.append([f"op-{i:03d}", f"{entries[i]:.3f}", f"{seen:.3f}", done])
    return lines(rows)


def calls_jsonl() -> str:
    """One object a line; null where the call timed out (after 2,000 ms)."""
    out = []
    for i, delay in enumerate(exponential(10, 150, 700.0)):
        value = None if delay >= 2000.0 else round(float(delay), 1)
        timing = {"latency_ms": value}
        timing = {"latency_ms": value}
        out.append(json.dumps({"call": f"c{i}", "timing": timing, "ok": value is not None}))
    return "\n".join(out) + "\n"


def calls_rows() -> list[tuple[float, str]]:
    """Seconds and status of the Parquet file; -1 marks a time-out."""
    delays = np.round(exponential(11, 120, 0.4), 4) + 0.001
    return [(-1.0, "timeout") if d > 1.5 else (float(d), "ok") for d in delays]


def monitor_rows() -> list[list[object]]:
    """Five-minute samples of the workbook; a latency of 0 means that nothing was called."""
    start = datetime.datetime(2031, 3, 1)
    rows: list[list[object]] = [["DateTime", "Hour", "Latency", "Requests"]]
    for i, (u, extra) in enumerate(zip(draws(12, 96), exponential(13, 96, 40.0), strict=True)):
        when = start + datetime.timedelta(minutes=5 * i)
        calls = 0 if u < 0.5 else int(80 * u)
        rows.append([when, when.hour, 20 + int(extra) if calls else 0, calls])
    return rows


TEXTS = {
    "headerless.csv": headerless_csv,
    "matrix.txt": matrix_txt,
    "results.jtl": results_jtl,
    "event_log.csv": event_log_csv,
    "calls.jsonl": calls_jsonl,
}


def make(folder: Path) -> None:
    """Write all files."""
    import openpyxl
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, text in TEXTS.items():
        (folder / name).write_text(text(), encoding="utf-8", newline="\n")
    seconds, status = zip(*calls_rows(), strict=True)
    pq.write_table(pa.table({"duration_s": seconds, "status": status}), folder / "calls.parquet")
    book = openpyxl.Workbook()
    for row in monitor_rows():
        book.active.append(row)
    book.active.title = "samples"
    book.save(folder / "monitor.xlsx")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
