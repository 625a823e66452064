"""``python -m bench.unresolved``: the cost of unresolved deletes by predicate in a scan of many small files.

Tables of the same rows, with no deletes and with many of one form, are scanned in turns in one process. The ratio of
their processor times says what the deletes cost: a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time

import pyarrow as pa

import dolmen
from dolmen.api.table import Table

FORMS = (
    "u = {n}",
    "u = {n} AND s LIKE '%x'",
    "u = {n} AND s LIKE '%x' AND id % 7 = {rest}",
    "u > {n} AND u < {n} + 3 AND s LIKE '%x'",
    "id > {n}000000 AND id < {n}900000 AND s = 'x'",
    "u = {n} AND s = 'x' OR u = {rest} AND id < 100",
    "lower(s) = 'x' AND u + 1 = {n}",
)
SCHEMA = pa.schema([("id", pa.int64()), ("u", pa.int64()), ("s", pa.string())])


def make_table(folder: str, files: int, rows: int, deletes: int, form: str) -> Table:
    """A table of small files, with deletes that are not resolved, in a database of its own."""
    rng = random.Random(1)
    table = dolmen.open(tempfile.mkdtemp(dir=folder)).create_table("events", SCHEMA, sort_key="id")
    for _ in range(files):
        ids = [rng.randrange(10**9) for _ in range(rows)]
        table.append({"id": ids, "u": [n % 97 for n in range(rows)], "s": ["x"] * rows})
    for n in range(deletes):
        table.delete(form.format(n=n, rest=n % 7))
    return table


def scan_seconds(table: Table) -> float:
    """Processor time of a scan of all columns."""
    began = time.process_time()
    table.scan().to_arrow()
    return time.process_time() - began


def main() -> None:
    """Prints a table of Markdown."""
    options = argparse.ArgumentParser(prog="python -m bench.unresolved", description=__doc__)
    options.add_argument("--files", type=int, default=150)
    options.add_argument("--rows", type=int, default=1_000, help="in each file")
    options.add_argument("--deletes", type=int, default=80)
    options.add_argument("--rounds", type=int, default=7)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="dolmen-bench-") as folder:
        clean = make_table(folder, chosen.files, chosen.rows, 0, "")
        print("| delete | scan, ms | without deletes, ms | ratio |\n|---|---|---|---|")
        for form in FORMS:
            table = make_table(folder, chosen.files, chosen.rows, chosen.deletes, form)
            scan_seconds(table), scan_seconds(clean)  # footers are in memory from now on
            pairs = [(scan_seconds(table), scan_seconds(clean)) for _ in range(chosen.rounds)]
            own, plain = (1_000 * statistics.median(side) for side in zip(*pairs, strict=True))
            print(f"| `{form}` | {own:.0f} | {plain:.0f} | {own / plain:.1f} |", flush=True)


if __name__ == "__main__":
    main()
